"""One search on the simulated pair, with the optimizations of one rung, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import mean

from flashedge.benchmark.ladder import Rung
from flashedge.benchmark.level_watch import LevelWatch
from flashedge.benchmark.virtual_memory import Side, Turn, Turns, VirtualMemory
from flashedge.engine.sim_clock import run_virtual
from flashedge.engine.sim_engine import SimConfig, SimEngine
from flashedge.engine.sim_scheduler import Slice
from flashedge.engine.sim_text import SimModel, Trace
from flashedge.engine.simulated import SimulatedGenerator, SimulatedVerifier, StockVerifier
from flashedge.events import Event, NodesMarked
from flashedge.runtime.driver import Driver
from flashedge.runtime.engines import Engines
from flashedge.runtime.hand_over import Ordering
from flashedge.runtime.spec import RunSpec
from flashedge.runtime.strategies import search_of
from flashedge.scheduling.kv_split import HostLink
from flashedge.scheduling.prefix_order import arrival_order, sweep_order
from flashedge.scheduling.roofline import Device, ModelShape
from flashedge.search.tree import Tree
from flashedge.types import NodeId, Speculation

CHUNK_TOKENS = 1024  # a step comes as one chunk: what is told in between costs real time alone
OnStep = Callable[[str, float, float, tuple[Slice, ...]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A pair on a device. kv_bytes: for both engines together; link: for offload, None: none;
    limits: most tokens of prompt and path, for generator and verifier; truncation: see
    `SimSpeculator`."""

    device: Device
    generator: ModelShape
    verifier: ModelShape
    kv_bytes: int
    link: HostLink | None = None
    limits: tuple[int, int] = (4096, 4096)
    max_num_seqs: int = 256
    truncation: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualRun:
    """What a search cost. seconds: virtual; generate_s, verify_s: with such a request open;
    goodput: mean tokens of a completed path / mean seconds to its completion (arXiv 2509.00195
    §6.1), 0 where none was completed; *_peak_bytes: most KV that requests held at once."""

    tree: Tree
    seconds: float
    generate_s: float
    verify_s: float
    goodput: float
    paths: int
    generator_peak_bytes: int
    verifier_peak_bytes: int
    preemptions: int
    verifier_tokens: int
    verifier_cached_tokens: int
    split_moves: int
    offloads: int
    offload_s: float
    speculation: Speculation


@dataclass(slots=True)
class _Noted:
    """What is seen while it runs."""

    done_s: dict[NodeId, float] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=lambda: {"generator": 0, "verifier": 0})


class _SameText:
    """runtime.engines.Grader: the simulated model boxes plain integers."""

    async def cluster(self, answers: Mapping[NodeId, str | None]) -> Mapping[NodeId, str | None]:
        return dict(answers)


def run_rung(
    rung: Rung,
    setup: Setup,
    trace: Trace,
    row: int,
    spec: RunSpec,
    *,
    on_step: OnStep | None = None,
    order: Ordering | None = None,
) -> VirtualRun:
    """One problem. on_step: told (engine, virtual time at its end, seconds, batch) of each engine
    step; order: instead of the rung's. Raises ConfigError where the KV does not hold a path."""
    return run_virtual(_searched(rung, setup, trace, row, spec, on_step, order))


async def _searched(
    rung: Rung,
    setup: Setup,
    trace: Trace,
    row: int,
    spec: RunSpec,
    on_step: OnStep | None,
    order: Ordering | None,
) -> VirtualRun:
    loop, noted, turns = asyncio.get_running_loop(), _Noted(), Turns()
    split = "kv_split" in rung.switches
    gates = Turn(turns), Turn(turns)
    generator = SimulatedGenerator(
        _config(setup, setup.generator, setup.limits[0], setup.kv_bytes),
        SimModel(trace),
        gate=gates[0],
        truncation=setup.truncation,
    )
    verifier = (StockVerifier if rung.stock else SimulatedVerifier)(
        _config(setup, setup.verifier, setup.limits[1], setup.kv_bytes), gate=gates[1]
    )
    for name, engine in (("generator", generator), ("verifier", verifier)):
        _watch(name, engine, noted, on_step)
    memory = VirtualMemory(
        Side(engine=generator, turn=gates[0]),
        Side(engine=verifier, turn=gates[1]),
        setup.kv_bytes,
        setup.link,
    )
    await memory.halves()
    engines = Engines(
        generator=generator,
        verifier=verifier,
        grader=_SameText(),
        order=order or (sweep_order if "prefix_order" in rung.switches else arrival_order),
        speculation="speculation" in rung.switches,
        lookahead="lookahead" in rung.switches,
    )
    prompt = generator.codec.encode_chat(spec.problem.messages)

    def note(event: Event) -> None:
        if isinstance(event, NodesMarked) and event.status == "complete":
            noted.done_s.update(dict.fromkeys(event.nodes, loop.time()))

    search = search_of(spec)
    if split:
        search = LevelWatch(search, lambda tree, all: memory.level(tree, len(prompt), all))
    driver = Driver(search, spec, prompt, engines, note)
    tree = (await driver.run()).tree
    lengths = [tree[node].path_tokens for node in noted.done_s]
    mean_s = mean(noted.done_s.values()) if noted.done_s else 0.0
    return VirtualRun(
        tree=tree,
        seconds=loop.time(),
        generate_s=driver.generating.seconds,
        verify_s=driver.verifying.seconds,
        goodput=mean(lengths) / mean_s if mean_s else 0.0,
        paths=len(lengths),
        generator_peak_bytes=noted.peaks["generator"],
        verifier_peak_bytes=noted.peaks["verifier"],
        preemptions=(await generator.view()).preemptions + (await verifier.view()).preemptions,
        verifier_tokens=driver.verifier_tokens,
        verifier_cached_tokens=driver.verifier_cached_tokens,
        split_moves=memory.moves,
        offloads=turns.moves,
        offload_s=turns.moved_s,
        speculation=driver.speculation,
    )


def _config(setup: Setup, shape: ModelShape, limit: int, kv_bytes: int) -> SimConfig:
    return SimConfig(
        shape=shape,
        kv_bytes=kv_bytes,
        device=setup.device,
        max_model_len=limit,
        max_num_seqs=setup.max_num_seqs,
        stream_interval=CHUNK_TOKENS,
    )


def _watch(name: str, engine: SimEngine, noted: _Noted, on_step: OnStep | None) -> None:
    now = asyncio.get_running_loop().time

    def told(batch: tuple[Slice, ...], took_s: float) -> None:
        noted.peaks[name] = max(noted.peaks[name], engine.held_bytes)
        if on_step is not None:
            on_step(name, now(), took_s, batch)

    engine.on_step = told
