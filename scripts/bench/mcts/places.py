"""Where the study's pairs run: on one simulated RTX 4090, on two cards for each model, or on one
core of a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from flashedge.benchmark.simulate import STUDY_OVERHEAD_BYTES, Question, build_bench
from flashedge.config import load_config
from flashedge.models.checkpoint_shape import find_shape
from flashedge.models.memory.batch_limits import CPU_SEQUENCES
from flashedge.models.registry import find_pair
from flashedge.scheduling.costs.roofline import Device
from scripts.bench.mcts.load import Place

CARD_SHARE = 0.9
"""Of the memory of a card that the engines may use."""
PAIRS: Mapping[str, str] = {
    "1.5B": "math-1.5b+skywork-1.5b",
    "7B": "math-7b+skywork-1.5b",
}
PLACES: Mapping[str, tuple[str, bool]] = {
    "1.5B on one card": ("1.5B", True),
    "7B on one card": ("7B", True),
    "1.5B on two cards a model": ("1.5B", False),
    "7B on two cards a model": ("7B", False),
}
"""Pair, and whether both models share one card. With two cards a model (as in arXiv 2604.00510
§5.1) an engine has twice the memory, the bandwidth and the FLOP/s; what its cards lose by
exchanging results is not counted."""

CORE = "bundled on one core"
"""The bundled pair on one core, with its own lengths. What the real daemon does on one core can be
simulated there without the noise of a machine."""
GENERATOR_CORE = Device(
    name="one core of a Xeon",
    flops=87e9,
    bandwidth=10e9,
    memory_bytes=4 * 2**30,
    overhead_s=0.0026,
    sequence_s=0.000_091,
)
VERIFIER_CORE = replace(
    GENERATOR_CORE, flops=113e9, bandwidth=3.5e9, overhead_s=0.0067, sequence_s=0.0012
)
"""As `flashedge profile --quick` measured both models on one core each of a Xeon with AMX, at the
same time, on 2026-11-25."""
CORE_KV_BYTES = 2 * 2**30
"""Of each model."""


@cache
def build_core() -> Place:
    config = load_config(environ={})
    pair = find_pair("bundled", config)
    return Place(
        name=CORE,
        generator=find_shape(pair.generator, config),
        verifier=find_shape(pair.verifier, config),
        device=GENERATOR_CORE,
        verifier_device=VERIFIER_CORE,
        kv_bytes=(CORE_KV_BYTES, CORE_KV_BYTES),
        is_shared=True,
        max_sequences=CPU_SEQUENCES,
        has_recorded_lengths=True,
    )


@cache
def build_place(name: str) -> Place:
    if name == CORE:
        return build_core()
    pair, is_shared = PLACES[name]
    question = Question(gpu="rtx4090", pair=PAIRS[pair], strategy="mcts", n=16, problems=1)
    setup = build_bench(question, load_config(environ={})).setup
    shapes = setup.generator, setup.verifier
    if is_shared:
        each = setup.kv_bytes // sum(shape.kv_bytes_per_token for shape in shapes)
        kv_bytes = tuple(each * shape.kv_bytes_per_token for shape in shapes)
        device = setup.device
    else:
        room = round(2 * setup.device.memory_bytes * CARD_SHARE) - 2 * STUDY_OVERHEAD_BYTES
        kv_bytes = tuple(room - shape.weights_bytes for shape in shapes)
        device = replace(
            setup.device,
            name=f"two {setup.device.name}",
            flops=2 * setup.device.flops,
            bandwidth=2 * setup.device.bandwidth,
            memory_bytes=2 * setup.device.memory_bytes,
        )
    return Place(
        name=name,
        generator=setup.generator,
        verifier=setup.verifier,
        device=device,
        kv_bytes=(kv_bytes[0], kv_bytes[1]),
        is_shared=is_shared,
    )
