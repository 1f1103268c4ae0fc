"""Random steps on a pair of engines: quotas, offloads, requests and cancellations.

Every answer is compared with one of an undisturbed engine, and no block may be held at the end.
"""

import asyncio
import random
from typing import Any

from flashedge.engine.base import Generator, ScoreRequest, Verifier
from flashedge.types import Problem
from tests.support.engine_rig import Close, ask, generate, score_whole, settle, some_steps

REQUESTS = 12  # different ones, sent again and again
OPEN = 16  # most at once


class Machine:
    def __init__(
        self, generator: Generator, verifier: Verifier, problem: Problem, seed: int
    ) -> None:
        self.generator, self.verifier = generator, verifier
        self.random = random.Random(seed)
        self.requests = [
            ask(self.generator, problem, seed=i, after=(50 + i,) * (40 * i), max_tokens=60)
            for i in range(REQUESTS)
        ]
        self.paths = [
            ScoreRequest(problem=problem, steps=some_steps(32, f"Walk{i}", 1 + i % 4))
            for i in range(REQUESTS)
        ]
        self.open: list[asyncio.Task[Any]] = []
        self.offloaded: set[Generator | Verifier] = set()
        self.answered = self.cancelled = self.offloads = 0

    async def begin(self) -> None:
        self.tokens = [(await generate(self.generator, r)).token_ids for r in self.requests]
        self.scores = [Close((await score_whole(self.verifier, p)).scores) for p in self.paths]

    async def step(self) -> None:
        kinds = (self.extend, self.score, self.cancel, self.budget, self.offload, self.restore)
        await self.random.choices(kinds, (30, 20, 12, 20, 8, 10))[0]()
        await asyncio.sleep(self.random.choice((0.0, 0.0, 0.005, 0.03)))
        if len(self.open) >= OPEN:
            await self.restore_all()
            await self.drain(self.open[0])

    # ------------------------------------------------------------ steps

    async def extend(self) -> None:
        self.open.append(asyncio.create_task(self._extend(self.random.randrange(REQUESTS))))

    async def score(self) -> None:
        self.open.append(asyncio.create_task(self._score(self.random.randrange(REQUESTS))))

    async def cancel(self) -> None:
        if self.open:
            task = self.open.pop(self.random.randrange(len(self.open)))
            self.cancelled += task.cancel()
            await asyncio.wait({task})
            assert task.cancelled() or task.exception() is None, task.exception()

    async def budget(self) -> None:
        engine = self.choose_engine()
        view = await engine.view()
        await engine.budget(self.random.randrange(view.blocks_total) * view.block_bytes // 8)
        after = await engine.view()
        assert after.blocks_used <= after.quota_blocks

    async def offload(self) -> None:
        engine = self.choose_engine()
        if engine not in self.offloaded:
            await engine.offload(keep=self.random.random() < 0.7)
            self.offloaded.add(engine)
            self.offloads += 1

    async def restore(self) -> None:
        engine = self.choose_engine()
        await engine.restore()
        self.offloaded.discard(engine)

    async def restore_all(self) -> None:
        for engine in tuple(self.offloaded):
            await engine.restore()
            self.offloaded.discard(engine)

    # ------------------------------------------------------------ inner

    def choose_engine(self) -> Generator | Verifier:
        return self.random.choice((self.generator, self.verifier))

    async def _extend(self, index: int) -> None:
        outcome = await generate(self.generator, self.requests[index])
        assert outcome.token_ids == self.tokens[index]
        self.answered += 1

    async def _score(self, index: int) -> None:
        path, verifier = self.paths[index], self.verifier
        is_whole = self.random.random() < 0.5
        scored = await (score_whole(verifier, path) if is_whole else verifier.score(path))
        assert self.scores[index] == scored.scores
        self.answered += 1

    async def drain(self, *tasks: asyncio.Task[Any]) -> None:
        for task in tasks:
            await task
            self.open.remove(task)


async def walk(machine: Machine, steps: int) -> None:
    """Take `steps` random steps, then check that everything is as it was before."""
    await machine.begin()
    engines = (machine.generator, machine.verifier)
    before = [await engine.view() for engine in engines]
    for _ in range(steps):
        await machine.step()
    await machine.restore_all()
    await machine.drain(*machine.open)
    for engine, view in zip(engines, before, strict=True):
        await engine.budget(view.quota_blocks * view.block_bytes)
        await settle(engine)
        after = await engine.view()
        assert (after.blocks_used, after.quota_blocks) == (0, view.quota_blocks)
        assert (after.running, after.waiting) == (0, 0)
        await engine.budget(0)  # all blocks can still be reserved and returned
        await engine.budget(view.quota_blocks * view.block_bytes)
    for request, expected in zip(machine.requests, machine.tokens, strict=True):
        assert (await generate(machine.generator, request)).token_ids == expected
    assert machine.answered > steps // 4
    assert machine.offloads >= steps // 50
    after = [await engine.view() for engine in engines]
    assert sum(view.preemptions for view in after) > sum(view.preemptions for view in before)
