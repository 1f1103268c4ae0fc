"""Runs one search on the simulated pair in virtual time, with the optimizations of one rung."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from flashedge.events import Event, NodesMarked, Offloaded, Restored
from flashedge.runtime.drive.driver import Driver
from flashedge.runtime.drive.engines import Ordering, build_engines
from flashedge.runtime.request.request import Request
from flashedge.runtime.request.strategies import build_search
from flashedge.search.tree import Tree
from flashedge.types import NodeId, Speculation
from scripts.lab.benchmark.goodput import compute_goodput
from scripts.lab.benchmark.ladder import Rung
from scripts.lab.benchmark.virtual_pair import IntegerGrader, Setup, VirtualPair, build_manager
from scripts.lab.sim.clock import run_virtual
from scripts.lab.sim.engine_loop import SimEngine
from scripts.lab.sim.sequence import Slice
from scripts.lab.sim.trace import StepTrace

OnStep = Callable[[str, float, float, tuple[Slice, ...]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualRun:
    """What a simulated search cost. Seconds are virtual."""

    tree: Tree
    seconds: float

    generate_s: float
    """Time with at least one open request to the generator."""

    verify_s: float
    """Time in which the search waited for scores."""

    goodput: float

    paths: int
    """Completed paths."""

    generator_peak_bytes: int
    """Most KV that requests of the generator held at once."""

    verifier_peak_bytes: int
    """Most KV that requests of the verifier held at once."""

    preemptions: int
    verifier_tokens: int
    verifier_cached_tokens: int
    split_moves: int
    offloads: int
    offload_s: float
    speculation: Speculation


@dataclass(slots=True)
class _Observed:
    """What is observed during a run."""

    done_s: dict[NodeId, float] = field(default_factory=dict)
    offload_s: float = 0.0
    peaks: dict[str, int] = field(default_factory=lambda: {"generator": 0, "verifier": 0})


def simulate_run(
    rung: Rung,
    setup: Setup,
    trace: StepTrace,
    row: int,
    spec: Request,
    *,
    on_step: OnStep | None = None,
    order: Ordering | None = None,
) -> VirtualRun:
    """Run one problem.

    on_step: receives (engine, virtual time at its end, seconds, batch) of each engine step.
    order: orders levels instead of the rung. Raises ConfigError where the KV holds no path.
    """
    return run_virtual(_run_search(rung, setup, trace, row, spec, on_step, order))


async def _run_search(
    rung: Rung,
    setup: Setup,
    trace: StepTrace,
    row: int,
    spec: Request,
    on_step: OnStep | None,
    order: Ordering | None,
) -> VirtualRun:
    loop, observed = asyncio.get_running_loop(), _Observed()
    twins = VirtualPair.build(setup, trace)
    generator, verifier = twins.generator, twins.verifier
    for name, engine in (
        ("generator", generator),
        ("verifier", verifier),
        ("verifier", twins.stock_verifier),
    ):
        await engine.budget(setup.kv_bytes // 2)
        _watch(name, engine, observed, on_step)
    optimizations = rung.optimizations
    manager = None
    if optimizations.kv_split:
        link = setup.link if optimizations.offload else None
        manager = build_manager(setup, link, generator, verifier)
        await manager.start()
    engines = build_engines(optimizations, twins, grader=IntegerGrader(), kv_manager=manager)
    engines = replace(engines, order=order)

    def note(event: Event) -> None:
        match event:
            case NodesMarked(status="complete", nodes=nodes):
                observed.done_s.update(dict.fromkeys(nodes, loop.time()))
            case Offloaded(seconds=seconds) | Restored(seconds=seconds):
                observed.offload_s += seconds

    prompt = generator.codec.encode_chat(spec.problem.messages)
    with engines.join_kv(note, len(prompt)) as memory:
        search = build_search(spec)
        driver = Driver(search, spec, prompt, engines, note, on_turn=memory.follow)
        tree = (await driver.run()).tree
    if manager is not None:
        await manager.stop()
    views = [await engine.view() for engine in (generator, verifier, twins.stock_verifier)]
    lengths = [tree[node].path_tokens for node in observed.done_s]
    return VirtualRun(
        tree=tree,
        seconds=loop.time(),
        generate_s=driver.generating.seconds,
        verify_s=driver.scoring.waiting.seconds,
        goodput=compute_goodput(lengths, observed.done_s.values()),
        paths=len(lengths),
        generator_peak_bytes=observed.peaks["generator"],
        verifier_peak_bytes=observed.peaks["verifier"],
        preemptions=sum(view.preemptions for view in views),
        verifier_tokens=driver.scoring.tokens,
        verifier_cached_tokens=driver.scoring.cached_tokens,
        offload_s=observed.offload_s,
        speculation=driver.speculation,
        split_moves=0 if manager is None else manager.moves,
        offloads=0 if manager is None else manager.offloads,
    )


def _watch(name: str, engine: SimEngine, observed: _Observed, on_step: OnStep | None) -> None:
    now = asyncio.get_running_loop().time

    def observe(batch: tuple[Slice, ...], took_s: float) -> None:
        observed.peaks[name] = max(observed.peaks[name], engine.held_bytes)
        if on_step is not None:
            on_step(name, now(), took_s, batch)

    engine.on_step = observe
