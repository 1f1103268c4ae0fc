"""Speculation on simulated engines: steps of very different lengths, a generator that records its
batches, a run with its counters."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

from flashedge.engine.base import Chunk, ExtendRequest
from flashedge.runtime.drive.driver import Outcome
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.request.validation import Request
from flashedge.types import Speculation
from scripts.lab.sim.engine_loop import Faults, SimConfig
from scripts.lab.sim.model import SimModel, StepTrace, TraceRow
from scripts.lab.sim.pair import SimulatedGenerator
from scripts.lab.sim.scheduler import Slice
from tests.support.runtime_rig import BEAM, CONFIG, driver_of, sim_engines


def make_irregular_row(seed: int) -> TraceRow:
    """Eight samples of three to six steps, of 3 to about 60 tokens each."""
    draw = Random(seed)

    def steps() -> tuple[int, ...]:
        sizes = (draw.lognormvariate(2.0, 0.9) for _ in range(draw.randint(3, 6)))
        return tuple(min(60, max(3, round(size))) for size in sizes)

    return TraceRow(prompt_tokens=8, step_tokens=tuple(steps() for _ in range(8)))


TRACE = StepTrace(tuple(make_irregular_row(seed) for seed in range(12)))
MODEL = SimModel(TRACE)
AMPLE = replace(CONFIG, max_model_len=512)
SEARCH = replace(BEAM, max_path_tokens=400)


def spec_for(problem: int, **fields: Any) -> Request:
    return replace(SEARCH, problem=TRACE.problem(problem), seed=problem, **fields)


class Batch(NamedTuple):
    standard: int
    drafts: int
    waiting: int
    """Standard sequences that wait after the step was planned."""


class WatchedGenerator(SimulatedGenerator):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.batches: list[Batch] = []
        self.requests: list[ExtendRequest] = []
        self.chunks: list[Chunk] = []

    async def extend(self, request: ExtendRequest) -> AsyncGenerator[Chunk]:
        self.requests.append(request)
        async with aclosing(super().extend(request)) as stream:
            async for chunk in stream:
                self.chunks.append(chunk)
                yield chunk

    async def _compute(self, batch: Sequence[Slice]) -> None:
        drafts = sum(part.sequence.is_draft for part in batch)
        waiting = sum(not s.is_draft for s in self._scheduler.waiting)
        self.batches.append(Batch(len(batch) - drafts, drafts, waiting))
        await super()._compute(batch)


def engines_with(
    config: SimConfig = AMPLE,
    *,
    speculation: bool = True,
    lookahead: bool = True,
    faults: Faults | None = None,
    model: SimModel = MODEL,
) -> Engines:
    engines = sim_engines(config=config, generator=faults, model=model, kind=WatchedGenerator)
    return engines.switch(speculation=speculation, lookahead=lookahead)


def get_generator(engines: Engines) -> WatchedGenerator:
    assert isinstance(engines.generator, WatchedGenerator)
    return engines.generator


class DrivenRun(NamedTuple):
    outcome: Outcome
    speculation: Speculation
    seconds: float


async def drive_run(engines: Engines, spec: Request) -> DrivenRun:
    clock = asyncio.get_running_loop().time
    start, driver = clock(), driver_of(engines, spec, lambda event: None)
    outcome = await driver.run()
    return DrivenRun(outcome, driver.speculation, clock() - start)
