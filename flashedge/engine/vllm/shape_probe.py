"""Finds, when an engine starts, a shape in which passes give the same bits every time.

A shape needs less of the kernels than batch invariance. With one window a pass, the same pass must
give the same bits twice. With several, a row's bits must not depend on its place in the pass, nor
on what the other rows hold (position invariance); and prompts may be computed in passes of several
windows only if a window's bits do not depend on its place among those of its own sequence. The
shapes are tried from the cheapest on, and the first that holds is taken.

Ref: arXiv 2601.17768 §3, O2. ADR 20.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from operator import eq
from random import Random
from typing import Any, TypeVar

import torch

from flashedge.engine.base import ExtendRequest, ScoreRequest
from flashedge.engine.self_test_turns import Turns
from flashedge.engine.vllm.batch_invariance import build_request, draw_tokens
from flashedge.engine.vllm.generator import VllmGenerator
from flashedge.engine.vllm.verifier import VllmVerifier
from flashedge.scheduling.determinism import ReplayShape
from flashedge.scheduling.kv.split import EngineRole
from flashedge.types import Problem

CPU_WINDOW, CUDA_WINDOW = 32, 64
"""Tokens of a window. A card needs many rows to be busy, a CPU few."""
GROUP = 4
"""Most windows of a pass. The paper measured the lowest latency at 256 tokens a pass."""
ITEMS = 6
"""Requests or paths that are compared."""
TOKENS = 12
_SCORED = ScoreRequest(
    problem=Problem.from_text("What is 12 + 7?"),
    steps=("12 + 7 = 19, since 2 + 7 = 9.\n\n", "The answer is 19."),
    deterministic=True,
)
Item = TypeVar("Item")
Result = TypeVar("Result")


def list_shapes(sequences: int, *, on_cpu: bool) -> tuple[ReplayShape, ...]:
    """The shapes to try, the cheapest first.

    sequences: most of a step. A pass has logits for all of its rows, and on a card memory is
    planned for the logits of this many."""
    window, group = CPU_WINDOW, GROUP
    if not on_cpu:
        window, group = CUDA_WINDOW, max(1, min(GROUP, sequences // CUDA_WINDOW))
    single = ReplayShape(window=window)
    if group == 1:
        return (single,)
    grouped = ReplayShape(window=window, group=group, prefill_windows=group)
    return grouped, replace(grouped, prefill_windows=1), single


async def choose_shape(generator: VllmGenerator, turns: Turns, *, on_cpu: bool) -> dict[str, Any]:
    """Find the first shape that holds, and let the generator use it.

    Returns `replay_shape` as JSON, None if not even one window a pass gives the same bits twice,
    and `position_invariant`, whether windows share a pass. Raises EngineDead, TimeoutError.
    """
    shapes = list_shapes(generator.options.max_num_seqs, on_cpu=on_cpu)
    requests = _build_requests(generator, shapes[0])

    def draw(request: ExtendRequest) -> Awaitable[object]:
        return draw_tokens(generator, request)

    for shape in shapes:
        take = partial(turns.take, EngineRole.GENERATOR)
        if await _compute_same(generator, requests, draw, eq, shape, take):
            return {"replay_shape": shape.to_json(), "position_invariant": shape.group > 1}
    return {"replay_shape": None, "position_invariant": False}


async def choose_score_shape(
    verifier: VllmVerifier, turns: Turns, *, on_cpu: bool
) -> dict[str, Any]:
    """Find the first shape that holds, also after a prefix from the cache, and let the verifier
    use it. Returns `score_shape` as JSON, None if none holds. Raises EngineDead, TimeoutError."""

    async def compute(path: list[int]) -> torch.Tensor:
        """The logits of all of the path's tokens. All KV is computed again."""
        return (await verifier.compute_rows(path, _SCORED, reuse=False))[0]

    async def hold_behind_prefix(alone: Sequence[torch.Tensor]) -> bool:
        for path, rows in zip(paths, alone, strict=True):
            async with turns.take(EngineRole.VERIFIER):
                await compute(path[: len(path) // 2 + 1])
                behind, cached = await verifier.compute_rows(path, _SCORED, reuse=True)
            if not torch.equal(behind, rows[cached:]):
                return False
        return True

    shapes = list_shapes(verifier.options.max_num_seqs, on_cpu=on_cpu)
    paths = _build_paths(verifier, shapes[0])
    for shape in shapes:
        take = partial(turns.take, EngineRole.VERIFIER)
        alone = await _compute_same(verifier, paths, compute, torch.equal, shape, take)
        if alone and await hold_behind_prefix(alone):
            return {"score_shape": shape.to_json()}
    return {"score_shape": None}


async def _compute_same(
    engine: VllmGenerator | VllmVerifier,
    items: Sequence[Item],
    compute: Callable[[Item], Awaitable[Result]],
    is_same: Callable[[Result, Result], bool],
    shape: ReplayShape,
    take: Callable[[], AbstractAsyncContextManager[None]],
) -> list[Result]:
    """Compute each item alone in a shape. Empty unless all have the same bits in one batch, in
    another order too, and, with several windows of prompt a pass, as with one."""

    async def compute_alone() -> list[Result]:
        found = []
        for item in items:
            async with take():
                found.append(await compute(item))
        return found

    await engine.set_replay_shape(shape)
    alone = await compute_alone()
    for order in (range(len(items)), range(len(items))[::-1]):
        async with take():
            together = await asyncio.gather(*(compute(items[i]) for i in order))
        if not all(is_same(alone[i], found) for i, found in zip(order, together, strict=True)):
            return []
    if shape.prefill_windows > 1:
        await engine.set_replay_shape(replace(shape, prefill_windows=1))
        one_by_one = await compute_alone()
        await engine.set_replay_shape(shape)
        if not all(map(is_same, alone, one_by_one)):
            return []
    return alone


def _build_requests(generator: VllmGenerator, shape: ReplayShape) -> list[ExtendRequest]:
    """Prompts of less than a window up to more than a pass, within the context."""
    draw = Random(0)
    vocabulary = generator.codec.encode("0123456789+-=. ")
    longest = generator.max_model_len - TOKENS - 1
    lengths = [
        min(longest, 5 + number * (shape.rows + shape.window) // ITEMS) for number in range(ITEMS)
    ]
    prompts = [tuple(draw.choices(vocabulary, k=length)) for length in lengths]
    return [
        build_request(prompt, seed=seed, max_tokens=TOKENS, deterministic=True)
        for seed, prompt in enumerate(prompts)
    ]


def _build_paths(verifier: VllmVerifier, shape: ReplayShape) -> list[list[int]]:
    """Paths of less than a window up to more than two passes, within the context."""
    draw = Random(0)
    vocabulary = sorted(set(verifier.encode(_SCORED)))
    longest = min(verifier.max_model_len, 2 * shape.rows + shape.window)
    lengths = [5 + number * (longest - 5) // (ITEMS - 1) for number in range(ITEMS)]
    return [draw.choices(vocabulary, k=length) for length in lengths]
