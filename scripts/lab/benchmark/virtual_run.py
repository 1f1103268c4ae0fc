"""One search on the simulated pair in virtual time, with the optimizations of one rung."""

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from flashedge.events import Event, NodesMarked, Offloaded, Restored
from flashedge.models.shape import ModelShape
from flashedge.optimizations import Optimizations
from flashedge.runtime.drive.driver import Driver
from flashedge.runtime.drive.engines import Engines, Ordering, build_engines
from flashedge.runtime.kv.curves import Curves
from flashedge.runtime.kv.manager import KvManager
from flashedge.runtime.request.strategies import build_search
from flashedge.runtime.request.validation import Request
from flashedge.scheduling.costs import Device, RooflineCurve
from flashedge.scheduling.kv.split import HostLink
from flashedge.scheduling.kv.stages import EngineCost
from flashedge.search.tree import Tree
from flashedge.types import NodeId, Speculation, TokenIds
from scripts.lab.benchmark.ladder import Rung, compute_goodput
from scripts.lab.sim.clock import run_virtual
from scripts.lab.sim.engine_loop import SimConfig
from scripts.lab.sim.generator import SimSpeculator
from scripts.lab.sim.model import SimModel, StepTrace
from scripts.lab.sim.pair import SimulatedGenerator, SimulatedStockVerifier, SimulatedVerifier
from scripts.lab.sim.scheduler import Slice

CHUNK_TOKENS = 1024  # streams a step in one chunk: smaller ones only cost real time


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A simulated pair on a device."""

    device: Device
    verifier_device: Device | None = None
    """Where the verifier has processors of its own. None lets the steps of both engines take turns
    on one device."""
    generator: ModelShape
    verifier: ModelShape
    kv_bytes: int
    """KV of both engines together."""
    block_tokens: int = 16
    link: HostLink | None = None
    """Way of offloaded KV to host memory. None offloads nothing."""
    most_drafted: int = sys.maxsize
    """See `engine.base.Generator`."""
    limits: tuple[int, int] = (4096, 4096)
    """Most tokens of prompt and path, for generator and verifier."""
    max_num_seqs: int = 256
    stream_interval: int = CHUNK_TOKENS
    """Tokens of a chunk that the generator sends."""
    common: float = 0.0
    """How often siblings write the same words. See `SimModel`."""
    speculator: type[SimSpeculator] = SimSpeculator
    manager: type[KvManager] = KvManager
    """What drafts steps, and what divides the memory. A study may try others."""


class IntegerGrader:
    """A `Grader` for the plain integers that the simulated model boxes."""

    async def cluster(self, answers: Mapping[NodeId, str | None]) -> Mapping[NodeId, str | None]:
        return dict(answers)


class VirtualPair:
    """The simulated pair and its stock twins. The generator ends steps by itself, so it is its own
    stock twin."""

    def __init__(self, setup: Setup, trace: StepTrace) -> None:
        """Build the engines on the running loop."""
        gate = asyncio.Lock() if setup.verifier_device is None else None
        generating = _build_config(setup, setup.device, setup.generator, setup.limits[0])
        device = setup.verifier_device or setup.device
        scoring = _build_config(setup, device, setup.verifier, setup.limits[1])
        model = SimModel(trace, common=setup.common)
        self.generator = self.stock_generator = SimulatedGenerator(
            generating, model, gate=gate, speculator=setup.speculator
        )
        self.generator.most_drafted = setup.most_drafted
        self.verifier = SimulatedVerifier(scoring, gate=gate)
        self.stock_verifier = SimulatedStockVerifier(scoring, gate=gate)


def _build_config(setup: Setup, device: Device, shape: ModelShape, limit: int) -> SimConfig:
    return SimConfig(
        shape=shape,
        kv_bytes=setup.kv_bytes,
        device=device,
        block_tokens=setup.block_tokens,
        max_model_len=limit,
        max_num_seqs=setup.max_num_seqs,
        stream_interval=setup.stream_interval,
        host_bytes_per_s=25e9 if setup.link is None else setup.link.bytes_per_s,
    )


def _build_manager(setup: Setup, link: HostLink | None, pair: VirtualPair) -> KvManager:
    """Build the product's own manager with the costs of the simulated device."""
    configs = pair.generator.config, pair.verifier.config
    generating, scoring = (RooflineCurve(device=c.device, shape=c.shape) for c in configs)
    curves = Curves(
        generator=generating,
        verifier=scoring,
        link_bytes_per_s=0.0 if link is None else link.bytes_per_s,
        source="the simulated device",
    )
    costs = [
        EngineCost(
            curve=curve,
            kv_bytes_per_token=config.shape.kv_bytes_per_token,
            block_tokens=config.block_tokens,
            max_batch=setup.max_num_seqs,
            least_bytes=-(-config.max_model_len // config.block_tokens) * config.block_bytes,
        )
        for curve, config in zip((generating, scoring), configs, strict=True)
    ]
    return setup.manager(
        pair.generator,
        pair.verifier,
        (costs[0], costs[1]),
        curves,
        kv_bytes=setup.kv_bytes,
        link=link,
    )


async def start_pair(
    setup: Setup, trace: StepTrace, optimizations: Optimizations
) -> tuple[VirtualPair, KvManager | None, Engines]:
    """Build the pair with its KV memory, on the running loop."""
    pair = VirtualPair(setup, trace)
    for engine in (pair.generator, pair.verifier, pair.stock_verifier):
        await engine.budget(setup.kv_bytes // 2)
    manager = None
    if optimizations.kv_split:
        link = setup.link if optimizations.offload else None
        manager = _build_manager(setup, link, pair)
        await manager.start()
    engines = build_engines(optimizations, pair, grader=IntegerGrader(), kv_manager=manager)
    return pair, manager, engines


async def drive(
    engines: Engines, spec: Request, prompt: TokenIds, note: Callable[[Event], None]
) -> tuple[Driver, Tree]:
    """Run the search to its end. The driver has counted what it cost."""
    with engines.join_kv(note, len(prompt)) as memory:
        search = build_search(spec)
        driver = Driver(search, spec, prompt, engines, note, on_turn=memory.follow)
        return driver, (await driver.run()).tree


OnStep = Callable[[str, tuple[Slice, ...], float], None]


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
    token_drafts: Mapping[str, int]
    """See `sim.token_drafts`."""


def simulate_run(
    rung: Rung,
    setup: Setup,
    trace: StepTrace,
    spec: Request,
    *,
    on_step: OnStep | None = None,
    order: Ordering | None = None,
    earlier: Sequence[Request] = (),
) -> VirtualRun:
    """Run one problem.

    on_step: receives (engine, batch, seconds) at the end of each engine step.
    order: orders levels instead of the rung.
    earlier: what the client has asked the same engines before. It counts in peaks, preemptions,
    moves and offloads. Raises ConfigError where the KV holds no path.
    """

    async def run() -> VirtualRun:
        now = asyncio.get_running_loop().time
        done_s: dict[NodeId, float] = {}
        offload_s = 0.0
        pair, manager, engines = await start_pair(setup, trace, rung.optimizations)
        verifiers = pair.verifier, pair.stock_verifier
        if on_step is not None:
            pair.generator.on_step = partial(on_step, "generator")
            for verifier in verifiers:
                verifier.on_step = partial(on_step, "verifier")

        def note(event: Event) -> None:
            nonlocal offload_s
            match event:
                case NodesMarked(status="complete", nodes=nodes):
                    done_s.update(dict.fromkeys(nodes, now()))
                case Offloaded(seconds=seconds) | Restored(seconds=seconds):
                    offload_s += seconds

        engines = replace(engines, order=order, client="client")

        async def search(number: int, spec: Request) -> tuple[Driver, Tree]:
            prompt = pair.generator.codec.encode_chat(spec.problem.messages)
            return await drive(replace(engines, program=f"search {number}"), spec, prompt, note)

        for number, asked in enumerate(earlier):
            await search(number, asked)
        done_s.clear()
        offload_s, began_s = 0.0, now()
        counted = dict(pair.generator.counters)
        driver, tree = await search(len(earlier), spec)
        if manager is not None:
            await manager.stop()
        views = [await engine.view() for engine in (pair.generator, *verifiers)]
        lengths = [tree[node].path_tokens for node in done_s]
        return VirtualRun(
            tree=tree,
            seconds=now() - began_s,
            generate_s=driver.generating.seconds,
            verify_s=driver.scoring.waiting.seconds,
            goodput=compute_goodput(lengths, [done - began_s for done in done_s.values()]),
            paths=len(lengths),
            generator_peak_bytes=pair.generator.peak_bytes,
            verifier_peak_bytes=max(verifier.peak_bytes for verifier in verifiers),
            preemptions=sum(view.preemptions for view in views),
            verifier_tokens=driver.scoring.tokens,
            verifier_cached_tokens=driver.scoring.cached_tokens,
            offload_s=offload_s,
            speculation=driver.speculation,
            token_drafts={
                name: count - counted[name] for name, count in pair.generator.counters.items()
            },
            split_moves=0 if manager is None else manager.mover.divisions,
            offloads=0 if manager is None else manager.mover.offloads,
        )

    return run_virtual(run())
