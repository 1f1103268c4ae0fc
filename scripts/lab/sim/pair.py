"""A simulated Generator and Verifier on virtual time (see `clock.run_virtual`).

    model.py        what the simulated model writes: its vocabulary, lengths and tokens
    blocks.py       KV blocks: reuse by prefix, LRU eviction, quota
    scheduler.py    the state of a request, and which requests run in a step; preemption
    engine_loop.py  configuration, loop, budget, health, faults
    generator.py, verifier.py   the two protocols of engine.base; drafts beside a level's steps

`step_cost.py` estimates what a step costs. Tokens and scores are made up, but they
are pure functions of the same inputs as a real model's, so exactness can be tested here.

Ref: arXiv 2509.00195 §4.3 for the cost model.
"""

from __future__ import annotations

import asyncio

from flashedge.models.shape import ModelShape
from flashedge.scheduling.costs import RTX_4090, Device
from scripts.lab.sim.engine_loop import Faults, SimConfig
from scripts.lab.sim.generator import SimulatedGenerator
from scripts.lab.sim.model import SimModel
from scripts.lab.sim.verifier import SimulatedStockVerifier, SimulatedVerifier

__all__ = [
    "Faults",
    "SimConfig",
    "SimulatedGenerator",
    "SimulatedStockVerifier",
    "SimulatedVerifier",
    "simulated_pair",
]


def simulated_pair(
    model: SimModel,
    *,
    generator: ModelShape,
    verifier: ModelShape,
    generator_kv_bytes: int,
    verifier_kv_bytes: int,
    device: Device = RTX_4090,
    max_model_len: int = 4096,
) -> tuple[SimulatedGenerator, SimulatedVerifier]:
    """A generator and a verifier on one device: their steps take turns."""
    gate = asyncio.Lock()

    def config(shape: ModelShape, kv_bytes: int) -> SimConfig:
        return SimConfig(shape=shape, kv_bytes=kv_bytes, device=device, max_model_len=max_model_len)

    return (
        SimulatedGenerator(config(generator, generator_kv_bytes), model, gate=gate),
        SimulatedVerifier(config(verifier, verifier_kv_bytes), gate=gate),
    )
