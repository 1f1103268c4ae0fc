"""What speculation's tests on simulated engines are written with: steps of very different lengths,
a generator whose batches are looked at, a run with its counters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from flashedge.answers.workers.mathematics import MathGrader
from flashedge.engine.base import Chunk, ExtendRequest
from flashedge.engine.sim.engine_loop import Faults, SimConfig
from flashedge.engine.sim.pair import SimulatedGenerator, SimulatedVerifier
from flashedge.engine.sim.scheduler import Slice
from flashedge.engine.sim.text import SimModel, Trace, TraceRow
from flashedge.runtime.drive.driver import Outcome
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.request.spec import RunSpec
from flashedge.types import Speculation
from tests.unit.runtime_rig import BEAM, CONFIG, driver_of


def irregular(seed: int) -> TraceRow:
    """Eight samples of three to six steps, of 3 to about 60 tokens each."""
    draw = Random(seed)

    def steps() -> tuple[int, ...]:
        sizes = (draw.lognormvariate(2.0, 0.9) for _ in range(draw.randint(3, 6)))
        return tuple(min(60, max(3, round(size))) for size in sizes)

    return TraceRow(prompt_tokens=8, step_tokens=tuple(steps() for _ in range(8)))


TRACE = Trace(tuple(irregular(seed) for seed in range(12)))
MODEL = SimModel(TRACE)
AMPLE = replace(CONFIG, max_model_len=512)
SEARCH = replace(BEAM, max_path_tokens=400)


def spec_for(problem: int, **fields: Any) -> RunSpec:
    spec = replace(SEARCH, problem=TRACE.problem(problem), seed=problem)
    return replace(spec, **fields)


@dataclass(frozen=True, slots=True)
class Batch:
    """One engine step: sequences in it, and standard ones that wait after it was planned."""

    standard: int
    speculative: int
    waiting: int
    quota: int


class WatchedGenerator(SimulatedGenerator):
    """Notes its batches, the requests it was given and the chunks that it gave."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.batches: list[Batch] = []
        self.asked: list[ExtendRequest] = []
        self.given: list[Chunk] = []

    def extend(self, request: ExtendRequest) -> AsyncGenerator[Chunk]:
        self.asked.append(request)
        return self._watched(super().extend(request))

    async def _watched(self, stream: AsyncGenerator[Chunk]) -> AsyncGenerator[Chunk]:
        try:
            async for chunk in stream:
                self.given.append(chunk)
                yield chunk
        finally:
            await stream.aclose()

    async def _compute(self, batch: Sequence[Slice]) -> None:
        speculative = sum(work.sequence.speculative for work in batch)
        self.batches.append(
            Batch(
                standard=len(batch) - speculative,
                speculative=speculative,
                waiting=sum(not s.speculative for s in self._scheduler.waiting),
                quota=self._scheduler.cache.quota,
            )
        )
        await super()._compute(batch)


def engines_with(
    config: SimConfig = AMPLE,
    *,
    speculation: bool = True,
    lookahead: bool = True,
    truncation: float | None = None,
    verifier: SimConfig | None = None,
    faults: Faults | None = None,
    model: SimModel = MODEL,
) -> Engines:
    gate = asyncio.Lock()
    return Engines(
        generator=WatchedGenerator(config, model, gate=gate, truncation=truncation, faults=faults),
        verifier=SimulatedVerifier(verifier or config, gate=gate),
        grader=MathGrader(),
    ).switch(speculation=speculation, lookahead=lookahead)


def watched(engines: Engines) -> WatchedGenerator:
    generator = engines.generator
    assert isinstance(generator, WatchedGenerator)
    return generator


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A run that was driven to its end. seconds: virtual."""

    outcome: Outcome
    speculation: Speculation
    seconds: float
    verifier_tokens: int


async def run_told(engines: Engines, spec: RunSpec) -> Told:
    loop = asyncio.get_running_loop()
    began = loop.time()
    driver = driver_of(engines, spec, lambda event: None)
    outcome = await driver.run()
    return Told(
        outcome=outcome,
        speculation=driver.speculation,
        seconds=loop.time() - began,
        verifier_tokens=driver.scoring.tokens,
    )
