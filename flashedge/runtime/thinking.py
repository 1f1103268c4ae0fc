"""Separates the thinking of a model from its answer.

Thinking models write `<think>`, their thinking, `</think>` and the answer. Some chat templates open
the tag in the prompt, and close it there where thinking is off. vLLM's parsers need the tags as
single tokens, which not every such model has; here the text decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flashedge.engine.base import Codec
from flashedge.search.step_rules import split_steps
from flashedge.types import THINK_CLOSE, THINK_OPEN, THINK_TAIL_TOKENS, Judges, TokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """Where the answers to one prompt hold the model's thinking."""

    begins: Literal["before", "thinking", "answer"]
    """Where a text begins. before: it may begin with the tag."""

    @classmethod
    def of_prompt(cls, codec: Codec, prompt_ids: TokenIds) -> Thinking:
        if not codec.thinks:
            return cls(begins="answer")
        tail = codec.decode(prompt_ids[-THINK_TAIL_TOKENS:]).rstrip()
        return cls(begins="thinking" if tail.endswith(THINK_OPEN) else "before")

    def split(self, text: str) -> tuple[str | None, str]:
        """(thinking or None, answer) of a whole text. No answer where the thinking did not end."""
        rest = text.lstrip()
        has_tag = self.begins == "before" and rest.startswith(THINK_OPEN)
        if self.begins != "thinking" and not has_tag:
            return None, text
        if has_tag:
            rest = rest.removeprefix(THINK_OPEN)
        thinking, _, answer = rest.partition(THINK_CLOSE)
        return thinking.strip() or None, answer.lstrip()

    def judge_answer(self, text: str, judges: Judges) -> tuple[str, ...]:
        """What a verifier judges of the answer in a whole text: its steps, or all of it as one.
        Nothing where the thinking did not end."""
        _, answer = self.split(text)
        if not answer.strip():
            return ()
        return split_steps(answer) if judges == "steps" else (answer,)

    def take_answer(self, steps: tuple[str, ...]) -> tuple[str, ...]:
        """The steps of a path's answer. All of its steps where the thinking did not end: a box in
        it is better than no answer."""
        thinking, answer = self.split("".join(steps))
        return split_steps(answer) if thinking and answer else steps


NO_THINKING = Thinking(begins="answer")
