"""Finds, when the verifier starts, the shape of a pass whose scores are the same bits again.

It does what `shape_probe` does for the generator. It takes the cheapest shape in which paths get
the same bits alone, beside others in any order, and behind a prefix from the cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import torch

from flashedge.engine.base import ScoreRequest
from flashedge.engine.self_test_turns import Turns
from flashedge.engine.vllm.shape_probe import list_shapes
from flashedge.engine.vllm.verifier import VllmVerifier
from flashedge.scheduling.determinism.replay_shape import ReplayShape
from flashedge.scheduling.kv.split import EngineRole
from flashedge.types import Problem

PATHS = 6
_REQUEST = ScoreRequest(
    problem=Problem.from_text("What is 12 + 7?"),
    steps=("12 + 7 = 19, since 2 + 7 = 9.\n\n", "The answer is 19."),
    deterministic=True,
)

Path = list[int]


async def choose_score_shape(
    verifier: VllmVerifier, turns: Turns, *, on_cpu: bool
) -> dict[str, Any]:
    """Find the first shape that holds, and let the engine use it.

    Returns `score_shape`, the shape as JSON, or None if none gives the same bits twice. Raises
    EngineDead and TimeoutError.
    """
    shapes = list_shapes(verifier.options.max_num_seqs, on_cpu=on_cpu)
    paths = _build_paths(verifier, shapes[0])
    for shape in shapes:
        await verifier.set_replay_shape(shape)
        if await _holds(verifier, paths, shape, turns):
            return {"score_shape": shape.to_json()}
    return {"score_shape": None}


async def _holds(
    verifier: VllmVerifier, paths: Sequence[Path], shape: ReplayShape, turns: Turns
) -> bool:
    alone = []
    for path in paths:
        async with turns.take(EngineRole.VERIFIER):
            alone.append(await _compute(verifier, path))
    for order in (range(len(paths)), range(len(paths))[::-1]):
        async with turns.take(EngineRole.VERIFIER):
            together = await asyncio.gather(*(_compute(verifier, paths[i]) for i in order))
        if not all(torch.equal(alone[i], rows) for i, rows in zip(order, together, strict=True)):
            return False
    if shape.prefill_windows > 1:
        await verifier.set_replay_shape(replace(shape, prefill_windows=1))
        one_by_one = []
        for path in paths:
            async with turns.take(EngineRole.VERIFIER):
                one_by_one.append(await _compute(verifier, path))
        await verifier.set_replay_shape(shape)
        if not all(map(torch.equal, alone, one_by_one)):
            return False
    for path, rows in zip(paths, alone, strict=True):
        async with turns.take(EngineRole.VERIFIER):
            await _compute(verifier, path[: len(path) // 2 + 1])
            behind, cached = await verifier.compute_rows(path, _REQUEST, reuse=True)
        if not torch.equal(behind, rows[cached:]):
            return False
    return True


def _build_paths(verifier: VllmVerifier, shape: ReplayShape) -> list[Path]:
    """Paths of less than a window up to more than two passes, as far as the context allows."""
    draw = Random(0)
    vocabulary = sorted(set(verifier.encode(_REQUEST)))
    longest = min(verifier.max_model_len, 2 * shape.rows + shape.window)
    lengths = [5 + number * (longest - 5) // (PATHS - 1) for number in range(PATHS)]
    return [draw.choices(vocabulary, k=length) for length in lengths]


async def _compute(verifier: VllmVerifier, path: Path) -> torch.Tensor:
    """The logits of all of the path's tokens. All KV is computed anew."""
    return (await verifier.compute_rows(path, _REQUEST, reuse=False))[0]
