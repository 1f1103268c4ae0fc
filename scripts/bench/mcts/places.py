"""Where the study's pairs run: on one simulated RTX 4090, on two cards for each model, or on one
core of a CPU."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial

from flashedge.config import load_config
from flashedge.models.checkpoint_shape import find_shape
from flashedge.models.memory.engine_memory import CPU_SEQUENCES
from flashedge.models.registry import find_pair
from flashedge.scheduling.costs import Device
from scripts.bench.mcts.load import Place
from scripts.lab.benchmark.simulate import STUDY_OVERHEAD_BYTES, Question, build_bench
from scripts.lab.benchmark.virtual_run import Setup

SMALL, LARGE = "math-1.5b+skywork-1.5b", "math-7b+skywork-1.5b"
CARD_SHARE = 0.9
"""Of the memory of a card that the engines may use."""
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


def _build_setup(pair: str) -> Setup:
    question = Question(gpu="rtx4090", pair=pair, strategy="mcts", n=16, problems=1)
    return build_bench(question, load_config(environ={})).setup


def _share_card(pair: str) -> Place:
    """Both models on one card, with KV for as many tokens each."""
    setup = _build_setup(pair)
    shapes = setup.generator, setup.verifier
    each = setup.kv_bytes // sum(shape.kv_bytes_per_token for shape in shapes)
    return Place(
        generator=shapes[0],
        verifier=shapes[1],
        device=setup.device,
        kv_bytes=(each * shapes[0].kv_bytes_per_token, each * shapes[1].kv_bytes_per_token),
        is_shared=True,
    )


def _give_two_cards(pair: str) -> Place:
    """Two cards a model, as in arXiv 2604.00510 §5.1: twice the memory, the bandwidth and the
    FLOP/s. What the cards lose by exchanging results is not counted."""
    setup = _build_setup(pair)
    one = setup.device
    room = round(2 * one.memory_bytes * CARD_SHARE) - 2 * STUDY_OVERHEAD_BYTES
    return Place(
        generator=setup.generator,
        verifier=setup.verifier,
        device=replace(
            one,
            name=f"two {one.name}",
            flops=2 * one.flops,
            bandwidth=2 * one.bandwidth,
            memory_bytes=2 * one.memory_bytes,
        ),
        kv_bytes=(room - setup.generator.weights_bytes, room - setup.verifier.weights_bytes),
        is_shared=False,
    )


def _share_core() -> Place:
    """The bundled pair on one core, with its own lengths. What the real daemon does there can be
    simulated without the noise of a machine."""
    config = load_config(environ={})
    pair = find_pair("bundled", config)
    return Place(
        generator=find_shape(pair.generator, config),
        verifier=find_shape(pair.verifier, config),
        device=GENERATOR_CORE,
        verifier_device=VERIFIER_CORE,
        kv_bytes=(CORE_KV_BYTES, CORE_KV_BYTES),
        is_shared=True,
        max_sequences=CPU_SEQUENCES,
        has_recorded_lengths=True,
    )


CORE = "bundled on one core"
PLACES: Mapping[str, Callable[[], Place]] = {
    "1.5B on one card": partial(_share_card, SMALL),
    "7B on one card": partial(_share_card, LARGE),
    "1.5B on two cards a model": partial(_give_two_cards, SMALL),
    "7B on two cards a model": partial(_give_two_cards, LARGE),
    CORE: _share_core,
}


@cache
def build_place(name: str) -> Place:
    """name: one of `PLACES`."""
    return PLACES[name]()
