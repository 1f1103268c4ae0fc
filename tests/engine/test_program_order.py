"""Waiting requests of the real engines run in the order of their programs, and no token changes."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace

import pytest_asyncio

from flashedge.engine.base import ExtendRequest
from flashedge.engine.vllm.generator import VllmGenerator
from flashedge.engine.vllm.pair import VllmPair
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.request.validation import Request
from flashedge.types import Problem
from tests.support.engine_rig import ask, kept_budgets
from tests.support.runtime_rig import drive

MANY = 24
"""Requests of each program: several times what the least quota lets run at once."""


@pytest_asyncio.fixture(loop_scope="session")
async def scarce(pair: VllmPair) -> AsyncIterator[VllmPair]:
    """Engines with as little KV memory as they can have, so that requests wait."""
    async with kept_budgets(pair.generator, pair.verifier):
        await asyncio.gather(pair.generator.budget(0), pair.verifier.budget(0))
        yield pair
        await asyncio.gather(pair.generator.rank_programs([]), pair.verifier.rank_programs([]))


def make_requests(generator: VllmGenerator, problem: Problem) -> list[ExtendRequest]:
    """Of three programs. Those of "first" hold the memory until those of "a" and "b" wait."""
    ids = generator.codec.encode_chat(problem.messages)
    return [
        ask(generator, problem, seed=seed, after=ids, max_tokens=64, program=program)
        for program in ("first", "a", "b")
        for seed in range(MANY)
    ]


async def run_all(
    generator: VllmGenerator, requests: Sequence[ExtendRequest]
) -> tuple[list[tuple[int, ...]], list[str]]:
    """The tokens of each request, and the programs in the order in which their requests began."""
    began: list[str] = []

    async def run(request: ExtendRequest) -> tuple[int, ...]:
        ids: tuple[int, ...] = ()
        async with aclosing(generator.extend(request)) as stream:
            async for chunk in stream:
                if not ids and chunk.token_ids:
                    began.append(request.program or "")
                ids += chunk.token_ids
        return ids

    return list(await asyncio.gather(*map(run, requests))), began


def count_before_last(began: Sequence[str], program: str, other: str) -> int:
    """Requests of `other` that began before the last one of `program`."""
    return began[::-1][began[::-1].index(program) :].count(other)


async def test_waiting_requests_follow_their_programs(scarce: VllmPair, problem: Problem) -> None:
    generator = scarce.generator
    requests = make_requests(generator, problem)
    plain, began = await run_all(generator, requests)
    assert count_before_last(began, "a", "b") < MANY / 2, "by arrival a goes first"
    before = await generator.process.call("get_counters")
    await generator.rank_programs(["first", "b", "a"])
    ranked, began = await run_all(generator, requests)
    after = await generator.process.call("get_counters")
    assert count_before_last(began, "b", "a") < MANY / 2, "b passes what waits of a"
    assert after["reordered"] > before["reordered"]
    assert ranked == plain, "the order changes no token"


async def test_a_run_has_the_same_tree_in_every_order(
    scarce: VllmPair, engines: Engines, problem: Problem
) -> None:
    """Four runs beside each other, while the order of their programs changes all the time."""
    specs = [
        Request(problem=problem, pair="bundled", n=8, seed=seed, strategy=strategy)
        for seed, strategy in enumerate(("beam", "best_of_n", "rebase", "beam"))
    ]
    alone = [await drive(engines, spec) for spec in specs]
    names = [f"run-{number}" for number in range(len(specs))]
    draw = random.Random(0)

    async def change_order() -> None:
        while True:
            draw.shuffle(names)
            await scarce.generator.rank_programs(names)
            await scarce.verifier.rank_programs(names)
            await asyncio.sleep(0.02)

    changing = asyncio.create_task(change_order())
    own = [replace(engines, program=f"run-{number}") for number in range(len(specs))]
    beside = await asyncio.gather(*map(drive, own, specs))
    changing.cancel()
    assert [story.outcome.tree for story in beside] == [story.outcome.tree for story in alone]
