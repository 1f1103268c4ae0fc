"""The environment of an engine's process shows it its cards, and no other engine's."""

from __future__ import annotations

import asyncio
import multiprocessing
import os

import pytest

from flashedge.engine.vllm.shown_cards import choose_cards, show_cards, show_cards_at_start
from flashedge.profiler.gpu import VARIABLE

CARDS = ("0", "1,2", None)


def report(answers: multiprocessing.Queue[str | None]) -> None:
    answers.put(os.environ.get(VARIABLE))


def start_process(method: str) -> str | None:
    context = show_cards_at_start(multiprocessing.get_context(method))
    answers = context.Queue()
    process: multiprocessing.Process = context.Process(target=report, args=(answers,))  # type: ignore[attr-defined]
    process.start()
    seen: str | None = answers.get(timeout=60)
    process.join()
    return seen


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
async def test_processes_that_start_at_once_see_their_own_cards(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setenv(VARIABLE, "7")

    async def start(cards: str | None) -> str | None:
        with choose_cards(cards):
            return await asyncio.to_thread(start_process, method)

    seen = await asyncio.gather(*map(start, CARDS))
    assert seen[:2] == ["0", "1,2"]
    if method == "spawn":  # a fork server that runs already has the environment of its own start
        assert seen[2] == "7"
    assert os.environ[VARIABLE] == "7"


@pytest.mark.parametrize("before", ["3", None])
def test_the_daemons_own_variable_comes_back(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if before is not None:
        monkeypatch.setenv(VARIABLE, before)
    with choose_cards("1"), show_cards():
        assert os.environ[VARIABLE] == "1"
    assert os.environ.get(VARIABLE) == before
