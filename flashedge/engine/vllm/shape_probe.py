"""Finds a shape (`PassShape`) in which an engine's passes give the same bits every time.

A shape demands less of the kernels than batch invariance does. With one window a pass, the same
pass must give the same bits twice. With several, a row's bits must not depend on its place in the
pass, nor on what the other rows hold (position invariance). A pass may compute several windows of
one prompt only if that gives the same bits as one window a pass. The shapes are tried from the
cheapest on, and the first one that fulfils this is taken.

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
from flashedge.scheduling.determinism import PassShape
from flashedge.scheduling.kv.split import EngineRole
from flashedge.types import Problem

CPU_WINDOW, CUDA_WINDOW = 32, 64
"""Tokens of a window. A card needs many rows to be busy, a CPU few."""
GROUP = 4
"""Most windows of a pass. The paper measured the lowest latency at 256 tokens a pass."""
ITEMS = 6
"""Requests or paths that are compared. Chosen by hand: two would leave out the lengths between a
window and a pass, and sixty would take ten times as long."""
TOKENS = 12
"""Tokens that each request draws. Chosen by hand: one would be drawn by the prompt's pass alone,
and a hundred would only take longer."""
_SCORED = ScoreRequest(
    problem=Problem.from_text("What is 12 + 7?"),
    steps=("12 + 7 = 19, since 2 + 7 = 9.\n\n", "The answer is 19."),
    deterministic=True,
)
Item = TypeVar("Item")
Result = TypeVar("Result")


def list_shapes(sequences: int, *, on_cpu: bool) -> tuple[PassShape, ...]:
    """The shapes to try, the cheapest first.

    sequences: the most that a step may have. A pass has logits for each of its rows, but the memory
    plan of a card has room for only one row of logits per sequence."""
    window, group = CPU_WINDOW, GROUP
    if not on_cpu:
        window, group = CUDA_WINDOW, max(1, min(GROUP, sequences // CUDA_WINDOW))
    single = PassShape(window=window)
    if group == 1:
        return (single,)
    grouped = PassShape(window=window, group=group, prefill_windows=group)
    return grouped, replace(grouped, prefill_windows=1), single


async def choose_shape(generator: VllmGenerator, turns: Turns, *, on_cpu: bool) -> dict[str, Any]:
    """Find the first shape that gives the same bits every time, and let the generator use it.

    Returns `replay_shape`, as JSON or None if there is none, and `position_invariant`: whether it
    has several windows a pass. Raises EngineDead, and TimeoutError by `turns`.
    """
    shapes = list_shapes(generator.options.max_num_seqs, on_cpu=on_cpu)
    requests = _build_requests(generator, shapes[0])
    draw = partial(draw_tokens, generator)
    take = partial(turns.take, EngineRole.GENERATOR)
    for shape in shapes:
        if await _compute_same(generator, requests, draw, eq, shape, take):
            return {"replay_shape": shape.to_json(), "position_invariant": shape.group > 1}
    return {"replay_shape": None, "position_invariant": False}


async def choose_score_shape(
    verifier: VllmVerifier, turns: Turns, *, on_cpu: bool
) -> dict[str, Any]:
    """Find the verifier's shape like `choose_shape`, also after a cached prefix. Returns
    `score_shape`, as JSON or None. Raises likewise."""
    take = partial(turns.take, EngineRole.VERIFIER)

    async def compute(path: list[int]) -> torch.Tensor:
        """Compute the logits of all of the path's tokens, without the prefix cache."""
        return (await verifier.compute_rows(path, _SCORED, reuse=False))[0]

    async def is_same_after_prefix(alone: Sequence[torch.Tensor]) -> bool:
        for path, rows in zip(paths, alone, strict=True):
            async with take():
                await compute(path[: len(path) // 2 + 1])
                after_prefix, cached = await verifier.compute_rows(path, _SCORED, reuse=True)
            if not torch.equal(after_prefix, rows[cached:]):
                return False
        return True

    shapes = list_shapes(verifier.options.max_num_seqs, on_cpu=on_cpu)
    paths = _build_paths(verifier, shapes[0])
    for shape in shapes:
        alone = await _compute_same(verifier, paths, compute, torch.equal, shape, take)
        if alone and await is_same_after_prefix(alone):
            return {"score_shape": shape.to_json()}
    return {"score_shape": None}


async def _compute_same(
    engine: VllmGenerator | VllmVerifier,
    items: Sequence[Item],
    compute: Callable[[Item], Awaitable[Result]],
    is_same: Callable[[Result, Result], bool],
    shape: PassShape,
    take: Callable[[], AbstractAsyncContextManager[None]],
) -> list[Result]:
    """Compute each item alone in a shape. Returns the results if each is the same in one batch with
    all others, in either order, and with one window of a prompt a pass, else an empty list."""

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


def _build_requests(generator: VllmGenerator, shape: PassShape) -> list[ExtendRequest]:
    """Build requests whose prompts are from less than a window to more than a pass long."""
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


def _build_paths(verifier: VllmVerifier, shape: PassShape) -> list[list[int]]:
    """Draw token ids of paths from less than a window to more than two passes, if they fit."""
    draw = Random(0)
    vocabulary = sorted(set(verifier.encode(_SCORED)))
    longest = min(verifier.max_model_len, 2 * shape.rows + shape.window)
    lengths = [5 + number * (longest - 5) // (ITEMS - 1) for number in range(ITEMS)]
    return [draw.choices(vocabulary, k=length) for length in lengths]
