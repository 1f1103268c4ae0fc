"""Runs a load of searches on a simulated pair in virtual time.

Driver, queue, admission and boosting are the product's own. The searches' steps come from recorded
trees (`content.py`). The length of a path is predicted as the mean of its problem's samples.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flashedge.config import Config
from flashedge.engine.base import EngineView
from flashedge.events import Event
from flashedge.models.shape import ModelShape
from flashedge.optimizations import Optimizations
from flashedge.runtime.drive.driver import Driver
from flashedge.runtime.drive.engines import Engines, build_engines
from flashedge.runtime.programs.scheduler import PairScheduler, measure_capacity
from flashedge.runtime.request.strategies import build_search
from flashedge.runtime.request.validation import Request
from flashedge.runtime.rollouts.boosting import Boosting
from flashedge.runtime.run_state import Rollouts
from flashedge.scheduling.costs import Device, RooflineCurve
from flashedge.scheduling.programs.program import Caller
from flashedge.scheduling.rollouts.allocation import Allocator
from flashedge.scheduling.rollouts.limiter import RolloutCost, RolloutLimiter
from flashedge.search.voting import Search
from scripts.bench.mcts.content import Contents, SimulatedProblem
from scripts.bench.mcts.leaping_engine import (
    LeapingGenerator,
    LeapingTwins,
    LeapingVerifier,
    SharedDevice,
)
from scripts.bench.mcts.load_record import LoadRecord, SearchRecord
from scripts.bench.mcts.point import Point
from scripts.bench.mcts.recorded_tree import RecordedProblem
from scripts.lab.benchmark.lengths import load_trace
from scripts.lab.benchmark.virtual_run import IntegerGrader
from scripts.lab.sim.clock import run_virtual
from scripts.lab.sim.engine_loop import SimConfig

CONTEXT, BLOCK_TOKENS = 4096, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Two models on one device, or on a device each."""

    generator: ModelShape
    verifier: ModelShape
    device: Device
    kv_bytes: tuple[int, int]
    """Of generator and verifier."""
    is_shared: bool
    max_sequences: int = 128
    verifier_device: Device | None = None
    """The speed of the verifier, where it differs."""
    has_recorded_lengths: bool = False
    """Whether steps are as long as recorded, or as those of Qwen2.5-Math."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boost:
    """How runs are boosted."""

    allocator: Allocator
    limiter: RolloutLimiter
    most: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Searches that arrive at their times."""

    place: Place
    config: Config
    search: Request
    problems: Sequence[RecordedProblem]
    times_s: Sequence[float]
    """When each problem arrives."""
    boost: Boost | None = None
    build: Callable[[Request], Search[Any]] = build_search


def run_load(load: Load) -> LoadRecord:
    """Run a load in virtual time."""
    return run_virtual(_Server(load).run())


class _Engines:
    """Implements `BoostedEngines`."""

    name = "simulated"

    def __init__(
        self, place: Place, generator: LeapingGenerator, verifier: LeapingVerifier
    ) -> None:
        self.max_sequences = place.max_sequences
        self.generator, self.verifier = generator, verifier
        self.rollout_cost = RolloutCost(
            generator=_build_curve(generator),
            verifier=_build_curve(verifier),
            shares_device=place.is_shared,
        )

    async def views(self) -> Mapping[str, EngineView]:
        return {"generator": await self.generator.view(), "verifier": await self.verifier.view()}


def _build_curve(engine: LeapingGenerator | LeapingVerifier) -> RooflineCurve:
    return RooflineCurve(device=engine.config.device, shape=engine.config.shape)


class _Server:
    """Serves the searches of one load."""

    def __init__(self, load: Load) -> None:
        self._load = load
        rows = load_trace("math").rows
        self._runs = [
            SimulatedProblem(
                number=i,
                problem=one,
                lengths=None if load.place.has_recorded_lengths else rows[one.number % len(rows)],
            )
            for i, one in enumerate(load.problems)
        ]
        for one in load.problems:
            one.asked = one.missed = 0

    async def run(self) -> LoadRecord:
        load, place = self._load, self._load.place
        self._contents = Contents(self._runs)
        device = SharedDevice()
        generator = LeapingGenerator(
            _build_config(place, place.generator, place.kv_bytes[0], place.device),
            self._contents,
            device,
        )
        verifier = LeapingVerifier(
            _build_config(
                place, place.verifier, place.kv_bytes[1], place.verifier_device or place.device
            ),
            self._contents,
            device if place.is_shared else SharedDevice(),
        )
        self._engines = _Engines(place, generator, verifier)
        now = asyncio.get_running_loop().time

        async def send_order(keys: Sequence[str]) -> None:
            await asyncio.gather(generator.rank_programs(keys), verifier.rank_programs(keys))

        self._board = PairScheduler("simulated", load.config, send_order, clock=now)
        capacity = await measure_capacity(
            generator,
            verifier,
            _build_curve(generator),
            max_running=load.config.max_running,
            max_sequences=place.max_sequences,
            is_shared=False,
        )
        self._board.set_capacity(capacity)
        self._boosting = None
        if load.boost is not None:
            self._boosting = Boosting(
                allocator=load.boost.allocator, limiter=load.boost.limiter, clock=now
            )
        self._records: dict[int, SearchRecord] = {}
        optimizations = Optimizations.only("suffix_scoring", "score_once")
        self._twins = LeapingTwins(generator, verifier)
        self._built = build_engines(optimizations, self._twins, grader=IntegerGrader())
        began_s = now()
        async with asyncio.TaskGroup() as group:
            for run, at_s in zip(self._runs, load.times_s, strict=True):
                await asyncio.sleep(max(0.0, at_s - now()))
                group.create_task(self._serve(run))
        makespan_s = now() - began_s
        await self._board.stop()
        boosted_share = 0.0
        if self._boosting is not None:
            await self._boosting.stop()
            boosted_share = self._boosting.open_s / max(1e-9, self._boosting.running_s)
        asked = sum(one.asked for one in load.problems)
        return LoadRecord(
            searches=tuple(self._records[run.number] for run in self._runs),
            makespan_s=makespan_s,
            busy_share=device.busy_s / makespan_s,
            boosted_share=boosted_share,
            missed_share=sum(one.missed for one in load.problems) / max(1, asked),
            preemptions=(await generator.view()).preemptions,
        )

    async def _serve(self, run: SimulatedProblem) -> None:
        now = asyncio.get_running_loop().time
        arrived_s, key = now(), f"run-{run.number}"
        spec = replace(self._load.search, problem=run.as_problem(), seed=run.problem.number)
        prompt = self._contents.encode_chat(spec.problem.messages)
        state = self._board.add_run(key, spec, prompt, Caller(client="client"))
        boosts = 0

        def note(event: Event) -> None:
            self._board.note_event(key, event)
            if self._boosting is not None:
                self._boosting.note_event(state)

        try:
            self._board.set_lengths(key, Point(run.predict_tokens()))
            self._board.queue.reserve(key)
            async with self._board.queue.wait_turn(key):
                self._board.note_start(key)
                started_s = now()
                engines: Engines = replace(self._built, program=key)
                search = self._load.build(spec)
                driver = Driver(search, spec, prompt, engines, note)
                if self._boosting is None or self._load.boost is None:
                    outcome = await driver.run()
                else:

                    def allow(rollouts: int, budget: int) -> None:
                        nonlocal boosts
                        boosts += rollouts > 1
                        driver.allow(rollouts)

                    state.rollouts = Rollouts(
                        key,
                        spec,
                        prompt_tokens=len(prompt),
                        arrived_s=arrived_s,
                        most=self._load.boost.most,
                    )
                    with self._boosting.join(state, self._engines, allow):
                        outcome = await driver.run()
        finally:
            self._board.end_run(key)
        answer = outcome.finish.answer
        self._records[run.number] = SearchRecord(
            problem=run.problem.number,
            arrived_s=arrived_s,
            wait_s=started_s - arrived_s,
            latency_s=now() - arrived_s,
            tokens=outcome.tree.committed_tokens + driver.cancelled_tokens,
            right=answer == "right",
            cut_by=outcome.cut_by,
            unlikely=outcome.finish.unlikely,
            rollouts=0,
            boosts=boosts,
            cancelled_tokens=driver.cancelled_tokens,
        )


def _build_config(place: Place, shape: ModelShape, kv_bytes: int, device: Device) -> SimConfig:
    return SimConfig(
        shape=shape,
        kv_bytes=kv_bytes,
        device=device,
        block_tokens=BLOCK_TOKENS,
        max_model_len=CONTEXT,
        max_num_seqs=place.max_sequences,
        max_batched_tokens=2048,
    )
