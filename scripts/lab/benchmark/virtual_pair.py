"""The simulated pair as simulations in virtual time build it: engines, KV memory, answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from flashedge.models.shape import ModelShape
from flashedge.runtime.kv.curves import Curves
from flashedge.runtime.kv.manager import KvManager
from flashedge.scheduling.costs import Device, RooflineCurve
from flashedge.scheduling.kv.split import HostLink
from flashedge.scheduling.kv.stages import EngineCost
from flashedge.scheduling.speculation.draft_choice import find_flat_batch
from flashedge.types import NodeId
from scripts.lab.benchmark.devices import Overheads
from scripts.lab.sim.config import SimConfig
from scripts.lab.sim.model import SimModel
from scripts.lab.sim.pair import SimulatedGenerator, SimulatedStockVerifier, SimulatedVerifier
from scripts.lab.sim.trace import StepTrace

TYPICAL_CONTEXT = 512  # tokens at which the flat batch is estimated
CHUNK_TOKENS = 1024  # streams a step in one chunk: smaller ones only cost real time


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A simulated pair on a device."""

    device: Device

    verifier_device: Device | None = None
    """Where the verifier has processors of its own. None lets the steps of both engines take turns
    on one device."""

    verifier_overheads: Overheads | None = None
    """What a step of the verifier adds to its roofline. None takes its device's."""

    generator: ModelShape
    verifier: ModelShape

    kv_bytes: int
    """KV of both engines together."""

    block_tokens: int = 16

    link: HostLink | None = None
    """Way of offloaded KV to host memory. None offloads nothing."""

    limits: tuple[int, int] = (4096, 4096)
    """Most tokens of prompt and path, for generator and verifier."""

    max_num_seqs: int = 256

    flat_batch: int | None = None
    """Batch up to which a step costs about what it costs for one sequence (see `BatchView`). None
    computes it from the device's roofline."""

    truncation: float | None = None
    """See `SimSpeculator`."""

    common: float = 0.0
    """How often siblings write the same words. See `SimModel`."""


class IntegerGrader:
    """Implements `Grader`. The simulated model boxes plain integers, which need no mathematics."""

    async def cluster(self, answers: Mapping[NodeId, str | None]) -> Mapping[NodeId, str | None]:
        return dict(answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualPair:
    """The simulated pair and its stock twins. The generator ends steps by itself, so it is its own
    stock twin."""

    generator: SimulatedGenerator
    verifier: SimulatedVerifier
    stock_generator: SimulatedGenerator
    stock_verifier: SimulatedVerifier

    @classmethod
    def build(cls, setup: Setup, trace: StepTrace) -> VirtualPair:
        """Build the engines on the running loop."""
        gate = asyncio.Lock() if setup.verifier_device is None else None
        generator = SimulatedGenerator(
            _build_config(setup, setup.device, setup.generator, setup.limits[0]),
            SimModel(trace, common=setup.common),
            gate=gate,
            truncation=setup.truncation,
        )
        device = setup.verifier_device or setup.device
        if setup.verifier_overheads is not None:
            device = setup.verifier_overheads.apply(device)
        config = _build_config(setup, device, setup.verifier, setup.limits[1])
        return cls(
            generator=generator,
            verifier=SimulatedVerifier(config, gate=gate),
            stock_generator=generator,
            stock_verifier=SimulatedStockVerifier(config, gate=gate),
        )


def build_manager(
    setup: Setup,
    link: HostLink | None,
    generator: SimulatedGenerator,
    verifier: SimulatedVerifier,
) -> KvManager:
    """Build the product's own manager with the costs of the simulated device."""
    curves_by_engine = [
        RooflineCurve(device=engine.config.device, shape=engine.config.shape)
        for engine in (generator, verifier)
    ]
    curves = Curves(
        generator=curves_by_engine[0],
        verifier=curves_by_engine[1],
        link_bytes_per_s=0.0 if link is None else link.bytes_per_s,
        source="the simulated device",
    )
    costs = [
        EngineCost(
            curve=curve,
            kv_bytes_per_token=engine.config.shape.kv_bytes_per_token,
            block_tokens=engine.config.block_tokens,
            max_batch=setup.max_num_seqs,
            least_bytes=-(-engine.max_model_len // engine.config.block_tokens)
            * engine.config.block_bytes,
        )
        for curve, engine in ((curves.generator, generator), (curves.verifier, verifier))
    ]
    return KvManager(
        generator,
        verifier,
        (costs[0], costs[1]),
        curves,
        kv_bytes=setup.kv_bytes,
        link=link,
    )


def _build_config(setup: Setup, device: Device, shape: ModelShape, limit: int) -> SimConfig:
    flat = setup.flat_batch
    if flat is None:
        flat = find_flat_batch(
            RooflineCurve(device=device, shape=shape).decode_at(TYPICAL_CONTEXT), setup.max_num_seqs
        )
    return SimConfig(
        shape=shape,
        kv_bytes=setup.kv_bytes,
        device=device,
        block_tokens=setup.block_tokens,
        max_model_len=limit,
        max_num_seqs=setup.max_num_seqs,
        stream_interval=CHUNK_TOKENS,
        host_bytes_per_s=25e9 if setup.link is None else setup.link.bytes_per_s,
        flat_batch=flat,
        unmeasured_batch=setup.max_num_seqs,  # by the paper's rule, where the flat batch is 0
    )
