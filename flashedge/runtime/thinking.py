"""Separates the thinking of a model from its answer.

Thinking models write `<think>`, their thinking, `</think>` and the answer. Some chat templates open
the tag in the prompt, and close it there where thinking is off. vLLM's parsers need the tags as
single tokens, which not every such model has; here the text decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from flashedge.engine.base import Codec
from flashedge.runtime.stopping import count_overlap
from flashedge.search.steps import split_steps
from flashedge.types import TokenIds

OPEN, CLOSE = "<think>", "</think>"
_TAIL_TOKENS = 16


class _Part(StrEnum):
    BEFORE = "before"  # the text may still begin with the tag
    THINKING = "thinking"
    GAP = "gap"  # between the thinking and the answer
    ANSWER = "answer"


class ThinkingParser:
    """Separates text that arrives in pieces, however it is cut. Pure."""

    def __init__(self, part: _Part) -> None:
        self._part = part
        self._held = ""
        self._has_thought = False

    def push(self, text: str) -> tuple[str, str]:
        """Take new text in. Returns (thinking, answer): what is new of each, without the tags and
        the blanks around them."""
        self._held += text
        if self._part is _Part.BEFORE:
            head = self._held.lstrip()
            if head.startswith(OPEN):
                self._part, self._held = _Part.THINKING, head.removeprefix(OPEN)
            elif not OPEN.startswith(head):
                self._part = _Part.ANSWER
        thinking = self._take_thinking() if self._part is _Part.THINKING else ""
        if self._part is _Part.GAP:
            self._held = self._held.lstrip()
            self._part = _Part.ANSWER if self._held else _Part.GAP
        if self._part is not _Part.ANSWER:
            return thinking, ""
        answer, self._held = self._held, ""
        return thinking, answer

    def flush(self) -> tuple[str, str]:
        """Return what was held back, when the generation has ended."""
        held, self._held = self._held, ""
        if self._part is _Part.THINKING:
            return self._strip(held), ""
        return "", "" if self._part is _Part.GAP else held

    def _take_thinking(self) -> str:
        before, close, after = self._held.partition(CLOSE)
        if close:
            self._part, self._held = _Part.GAP, after
            return self._strip(before)
        keep = count_overlap(before, CLOSE)
        ready = before[: len(before) - keep].rstrip()
        self._held = before[len(ready) :]
        return self._strip(ready)

    def _strip(self, thinking: str) -> str:
        thinking = thinking.rstrip() if self._has_thought else thinking.strip()
        self._has_thought = self._has_thought or bool(thinking)
        return thinking


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """Where the answers to one prompt hold the model's thinking."""

    begins: _Part

    @classmethod
    def of_prompt(cls, codec: Codec, prompt_ids: TokenIds) -> Thinking:
        if not codec.thinks:
            return cls(begins=_Part.ANSWER)
        tail = codec.decode(prompt_ids[-_TAIL_TOKENS:]).rstrip()
        return cls(begins=_Part.THINKING if tail.endswith(OPEN) else _Part.BEFORE)

    def parse(self) -> ThinkingParser:
        """A parser for one answer."""
        return ThinkingParser(self.begins)

    def split(self, text: str) -> tuple[str | None, str]:
        """(thinking, answer) of a whole text. The thinking is None where there is none; the answer
        is empty where the thinking did not end."""
        parser = self.parse()
        parts = parser.push(text), parser.flush()
        thinking, answer = ("".join(part) for part in zip(*parts, strict=True))
        return thinking or None, answer

    def take_answer(self, steps: tuple[str, ...]) -> tuple[str, ...]:
        """The steps of a path's answer, without the thinking. All of its steps where the thinking
        did not end: a box in it is better than no answer."""
        thinking, answer = self.split("".join(steps))
        return split_steps(answer) if thinking and answer else steps


NO_THINKING = Thinking(begins=_Part.ANSWER)
