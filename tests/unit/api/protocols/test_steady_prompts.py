"""What coding agents change in each request is left out of the instructions, and nothing else."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from flashedge.api.paths import CHAT, MESSAGES, RESPONSES
from flashedge.api.protocols.client_habits import steady, steady_prompt
from flashedge.optimizations import Features
from tests.support.api_rig import client_of
from tests.support.fake_service import FakeService

REST = "You are a coding agent."
USER = {"role": "user", "content": "hi"}


def head(turn: str) -> str:
    return f"x-anthropic-billing-header: cc_version=2.1.1.{turn}; cc_entrypoint=cli; cch={turn};"


def left(turn: str) -> str:
    return f"<total_tokens>{turn}000 tokens left</total_tokens>"


def part(text: str, kind: str = "text") -> dict[str, Any]:
    return {"type": kind, "text": text, "cache_control": {"type": "ephemeral"}}


def list_bodies(turn: str) -> list[dict[str, Any]]:
    texts = (f"{head(turn)}\n{REST}", f"{head(turn)}{REST}", f"{REST}\n{left(turn)}")
    bodies: list[dict[str, Any]] = []
    for text in texts:
        bodies += [
            {"system": text, "messages": [USER]},
            {"system": [part(text)], "messages": [USER]},
            {"messages": [{"role": "system", "content": text}, USER]},
            {"messages": [{"role": "developer", "content": [part(text)]}, USER]},
            {"instructions": text, "input": "hi"},
            {"input": [{"role": "system", "content": [part(text, "input_text")]}, USER]},
        ]
    alone = [{"role": "system", "content": said} for said in (left(turn), [part(left(turn))])]
    bodies += [
        {"system": [part(head(turn)), part(REST)], "messages": [USER]},
        {"system": [part(REST), part(head(turn))], "messages": [USER]},
        *({"system": REST, "messages": [USER, late, USER]} for late in alone),
        *({"messages": [USER, late]} for late in alone),
        *({"instructions": REST, "input": [USER, late, USER]} for late in alone),
    ]
    return bodies


@pytest.mark.parametrize("at", range(len(list_bodies("a"))))
def test_instructions_stay_from_turn_to_turn(at: int) -> None:
    first, second = list_bodies("a1")[at], list_bodies("b2")[at]
    assert first != second
    steady_prompt(first)
    steady_prompt(second)
    assert first == second
    assert not [word for word in ("tokens left", "billing") if word in str(first)]
    assert "hi" in str(first)
    assert REST in str(first) or REST not in str(list_bodies("a1")[at])


def test_the_instructions_around_stay() -> None:
    for text, kept in (
        (f"{head('a')}\n{REST}", REST),
        (f"{head('a')}{REST}", REST),
        (f"{head('a')} {REST}", REST),
        (f"{REST}{head('a')}", REST),
        (f"x-anthropic-billing-header: a1b2\n{REST}", REST),
        (f"x-anthropic-billing-header:\n{REST}", REST),
        (f"{REST}\nx-anthropic-billing-header: a1b2", f"{REST}\n"),
        (f"{REST}\n{left('a')}\n{REST}", f"{REST}\n{REST}"),
    ):
        assert steady(text) == kept


@pytest.mark.parametrize(
    "text",
    [
        REST,
        "",
        " \n",
        "Never write an x-anthropic-billing-header of your own.",
        "Leave the x-anthropic-billing-header: no one needs it.",
        "Say how many tokens are left: <total_tokens>.",
        "<total_tokens>many\n\n tokens left</total_tokens>",
    ],
)
def test_other_instructions_stay_as_they_are(text: str) -> None:
    assert steady(text) == text
    for body in ({"system": text}, {"system": [part(text)]}):
        before = copy.deepcopy(body)
        steady_prompt(body)
        if text:
            assert body == before


def test_what_is_no_instruction_stays() -> None:
    said = f"{head('a')}\n{left('a')}"
    body = {
        "messages": [
            {"role": "user", "content": said},
            {"role": "assistant", "content": [part(said)]},
            {"role": "tool", "content": said},
            {"role": "system", "content": 5},
            "odd",
        ],
        "input": "odd",
        "system": {"odd": said},
        "instructions": 7,
    }
    before = copy.deepcopy(body)
    steady_prompt(body)
    assert body == before


@pytest.mark.parametrize(
    ("path", "at"),
    [(MESSAGES, 0), (CHAT, 2), (RESPONSES, 4)],
    ids=["messages", "chat", "responses"],
)
@pytest.mark.parametrize("model", ["bundled", "bundled:beam-4"])
async def test_the_setting_turns_it_off(path: str, at: int, model: str) -> None:
    for setting in (True, False):
        service = FakeService()
        async with client_of(service, features=Features(steady_prompts=setting)) as client:
            await client.post(path, json={**list_bodies("a")[at], "model": model})
        ((_, seen, _),) = service.protocols.asked
        assert ("billing" in str(seen)) is not setting
        assert REST in str(seen)
