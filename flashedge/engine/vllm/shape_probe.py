"""Finds, when the generator starts, the shape of a pass whose results are the same bits again.

What a shape needs of the kernels is less than batch invariance. With one window a pass, the same
pass must give the same bits twice. With several, a row's bits must not depend on its place in the
pass, nor on what the other rows hold (position invariance). And prompts may be computed in passes
of several windows only if a window's bits do not depend on where in a pass it stands among those
of its own sequence. The shape that costs least is tried first, and the first that holds is taken.

Ref: arXiv 2601.17768 §3, O2. ADR 20.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from flashedge.engine.base import ExtendRequest
from flashedge.engine.self_test_turns import Turns
from flashedge.engine.vllm.generator import VllmGenerator
from flashedge.engine.vllm.invariance_probe import draw_tokens
from flashedge.scheduling.determinism.replay_shape import ReplayShape
from flashedge.scheduling.kv.split import EngineRole
from flashedge.types import Sampling

CPU_WINDOW, CUDA_WINDOW = 32, 64
"""Tokens of a window. A card needs many rows to be busy; a CPU is so with few."""
GROUP = 4
"""Most windows of a pass. The paper measured the lowest latency at 256 tokens a pass."""
REQUESTS = 6
TOKENS = 12


def list_shapes(sequences: int, *, on_cpu: bool) -> tuple[ReplayShape, ...]:
    """The shapes to try, the cheapest first.

    sequences: most sequences of a step. A pass has logits for all of its rows, and on a card memory
    is planned for those of so many.
    """
    if on_cpu:
        window, group = CPU_WINDOW, GROUP
    else:
        window, group = CUDA_WINDOW, max(1, min(GROUP, sequences // CUDA_WINDOW))
    single = ReplayShape(window=window)
    if group == 1:
        return (single,)
    grouped = ReplayShape(window=window, group=group, prefill_windows=group)
    return grouped, replace(grouped, prefill_windows=1), single


async def choose_shape(generator: VllmGenerator, turns: Turns, *, on_cpu: bool) -> dict[str, Any]:
    """Find the first shape that holds, and let the engine use it.

    Returns `replay_shape`, the shape as JSON, or None if not even one window a pass gives the same
    bits twice; and `position_invariant`, whether several windows share a pass. Raises EngineDead
    and TimeoutError.
    """
    shapes = list_shapes(generator.options.max_num_seqs, on_cpu=on_cpu)
    requests = _build_requests(generator, shapes[0])
    for shape in shapes:
        await generator.set_replay_shape(shape)
        if await _holds(generator, requests, shape, turns):
            return {"replay_shape": shape.to_json(), "position_invariant": shape.group > 1}
    return {"replay_shape": None, "position_invariant": False}


async def _holds(
    generator: VllmGenerator, requests: Sequence[ExtendRequest], shape: ReplayShape, turns: Turns
) -> bool:
    """Whether requests give the same bits alone, beside each other, and beside them in another
    order; and, with several windows of prompt a pass, as with one."""
    alone = []
    for request in requests:
        async with turns.take(EngineRole.GENERATOR):
            alone.append(await draw_tokens(generator, request))
    for order in (requests, requests[::-1]):
        async with turns.take(EngineRole.GENERATOR):
            together = await asyncio.gather(*(draw_tokens(generator, r) for r in order))
        if together != (alone if order is requests else alone[::-1]):
            return False
    if shape.prefill_windows == 1:
        return True
    await generator.set_replay_shape(replace(shape, prefill_windows=1))
    one_by_one = []
    for request in requests:
        async with turns.take(EngineRole.GENERATOR):
            one_by_one.append(await draw_tokens(generator, request))
    await generator.set_replay_shape(shape)
    return one_by_one == alone


def _build_requests(generator: VllmGenerator, shape: ReplayShape) -> list[ExtendRequest]:
    """Prompts of less than a window up to more than a pass, as far as the context allows."""
    draw = Random(0)
    vocabulary = generator.codec.encode("0123456789+-=. ")
    longest = generator.max_model_len - TOKENS - 1
    lengths = [
        min(longest, 5 + number * (shape.rows + shape.window) // REQUESTS)
        for number in range(REQUESTS)
    ]
    return [
        ExtendRequest(
            token_ids=tuple(draw.choices(vocabulary, k=length)),
            seed=seed,
            sampling=Sampling(temperature=1.0),
            max_tokens=TOKENS,
            to_boundary=False,
            deterministic=True,
        )
        for seed, length in enumerate(lengths)
    ]
