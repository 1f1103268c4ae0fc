"""The thinking of a model and its answer, apart, however the text is cut."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashedge.engine.sim.clock import VirtualTimePolicy
from flashedge.runtime.thinking import NO_THINKING, Thinking
from tests.unit.runtime.test_chat import SPEC, ByteCodec, Scripted, say


@pytest.fixture
def event_loop_policy() -> VirtualTimePolicy:
    return VirtualTimePolicy()


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


@given(
    st.sampled_from([CLOSED, OPENED, OFF, NO_THINKING]),
    st.lists(st.sampled_from(["<think>", "</think>", "a", " ", "\n", "<", "/thi", "nk>"])),
    st.lists(st.integers(0, 40), max_size=6),
)
def test_pieces_give_what_the_whole_gives(
    thinking: Thinking, words: list[str], cuts: list[int]
) -> None:
    text = "".join(words)
    places = sorted(min(cut, len(text)) for cut in (0, *cuts, len(text)))
    parser = thinking.parse()
    parts = [parser.push(text[a:b]) for a, b in itertools.pairwise(places)]
    parts.append(parser.flush())
    found = "".join(t for t, _ in parts), "".join(a for _, a in parts)
    whole, answer = thinking.split(text)
    assert found == (whole or "", answer)


def test_the_steps_of_the_answer() -> None:
    steps = ("<think>\nA 1.\n\n", "B.\n</think>\n\n", "So 2.\n\n", "It is 3.")
    assert CLOSED.take_answer(steps) == ("So 2.\n\n", "It is 3.")
    assert CLOSED.take_answer(steps[:1]) == steps[:1]
    assert NO_THINKING.take_answer(steps) == steps


async def test_a_chat_streams_the_thinking_apart_from_the_answer() -> None:
    generator = Scripted([b"<thi", b"nk>\nSo", b" 2.</think>", b"\n\n", b"4"])
    generator.codec = ThinkingCodec()
    deltas = await say(generator)
    assert [(d.reasoning, d.text) for d in deltas] == [
        ("", ""),
        ("So", ""),
        (" 2.", ""),
        ("", ""),
        ("", "4"),
    ]
    stopped = await say(Scripted([b"a", b"bENDc"]), replace(SPEC, stop=("END",)))
    assert "".join(d.text for d in stopped) == "ab"
