"""Separates the thinking of a model from its answer.

Thinking models write `<think>`, their thinking, `</think>` and the answer, or have other tags. Some
chat templates open the tag in the prompt, and close it there where thinking is off. vLLM's parsers
need the tags as single tokens, which not every such model has, so this module looks for their text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flashedge.engine.base import Codec
from flashedge.search.step_rules import split_steps
from flashedge.types import THINK_CLOSE, THINK_OPEN, THINK_TAIL_TOKENS, Judges, ThinkTags, TokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """Where the texts that answer one prompt hold the model's thinking."""

    begins: Literal["before", "thinking", "answer"]
    """What a text begins with. before: with the tag, or with the answer if there is no tag."""
    tags: ThinkTags = (THINK_OPEN, THINK_CLOSE)

    @classmethod
    def of_prompt(cls, codec: Codec, prompt_ids: TokenIds) -> Thinking:
        """Find whether the prompt has opened the thinking."""
        if (tags := codec.think_tags) is None:
            return cls(begins="answer")
        tail = codec.decode(prompt_ids[-THINK_TAIL_TOKENS:]).rstrip()
        return cls(begins="thinking" if tail.endswith(tags[0]) else "before", tags=tags)

    def split(self, text: str) -> tuple[str | None, str]:
        """Split a whole text into (thinking or None, answer). The answer is empty where the
        thinking did not end."""
        rest = text.lstrip()
        opens, closes = self.tags
        has_tag = self.begins == "before" and rest.startswith(opens)
        if self.begins != "thinking" and not has_tag:
            # gpt-oss names its channel before an answer without thinking, too.
            final = closes.removeprefix("assistant")
            return None, text if final == closes else rest.removeprefix(final)
        if has_tag:
            rest = rest.removeprefix(opens)
        thinking, _, answer = rest.partition(closes)
        return thinking.strip() or None, answer.lstrip()

    def list_judged(self, text: str, judges: Judges) -> tuple[str, ...]:
        """List what a verifier judges of a whole text: the answer's steps, or the answer as one.
        Empty where the thinking did not end, or the answer is blank."""
        _, answer = self.split(text)
        if not answer.strip():
            return ()
        return split_steps(answer) if judges == "steps" else (answer,)

    def take_answer(self, steps: tuple[str, ...]) -> tuple[str, ...]:
        """Take the steps of a path's answer. Where the thinking did not end, take all steps, since
        a boxed answer among them is better than none."""
        text = "".join(steps)
        _, answer = self.split(text)
        return split_steps(answer) if answer and answer != text else steps


NO_THINKING = Thinking(begins="answer")
