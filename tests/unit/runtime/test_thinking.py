"""The thinking of a model and its answer, apart."""

from __future__ import annotations

import pytest

from flashedge.runtime.thinking import NO_THINKING, Thinking
from tests.support.byte_codec import ByteCodec


class ThinkingCodec(ByteCodec):
    thinks = True


def after(prompt: str) -> Thinking:
    return Thinking.of_prompt(ThinkingCodec(), tuple(prompt.encode()))


CLOSED = after("assistant: ")  # the model opens the tag itself
OPENED = after("assistant: <think>\n")
OFF = after("assistant: <think>\n\n</think>\n\n")


@pytest.mark.parametrize(
    ("thinking", "text", "parts"),
    [
        (CLOSED, "<think>\nSo 2.\n\nWait.\n</think>\n\n4", ("So 2.\n\nWait.", "4")),
        (CLOSED, "\n<think></think>4 < 5", (None, "4 < 5")),
        (CLOSED, "<think>\nSo 2", ("So 2", "")),
        (CLOSED, "<thin air", (None, "<thin air")),
        (CLOSED, " 4", (None, " 4")),
        (CLOSED, "", (None, "")),
        (CLOSED, "<th", (None, "<th")),
        (OPENED, "So 2. </think> 4\n", ("So 2.", "4\n")),
        (OPENED, "So </th", ("So </th", "")),
        (OPENED, "So 2.", ("So 2.", "")),
        (OFF, "The answer is 4.", (None, "The answer is 4.")),
        (NO_THINKING, "<think>a</think>b", (None, "<think>a</think>b")),
    ],
)
def test_split(thinking: Thinking, text: str, parts: tuple[str | None, str]) -> None:
    assert thinking.split(text) == parts


def test_the_steps_of_the_answer() -> None:
    steps = ("<think>\nA 1.\n\n", "B.\n</think>\n\n", "So 2.\n\n", "It is 3.")
    assert CLOSED.take_answer(steps) == ("So 2.\n\n", "It is 3.")
    assert CLOSED.take_answer(steps[:1]) == steps[:1]
    assert NO_THINKING.take_answer(steps) == steps
