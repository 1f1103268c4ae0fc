"""The flag on requests to the verifier's engine. In fp32 it changes no score."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from flashedge.engine.base import ScoreRequest
from flashedge.engine.self_test_turns import Turns, never_wait
from flashedge.engine.vllm.shape_probe import choose_score_shape
from flashedge.engine.vllm.verifier import VllmVerifier
from flashedge.scheduling.determinism import ReplayShape
from flashedge.types import Problem
from tests.support.engine_rig import joined, score_by_steps, settle, some_steps

pytestmark = pytest.mark.asyncio(loop_scope="session")
SHAPES = [
    ReplayShape(window=32),
    ReplayShape(window=32, group=4),
    ReplayShape(window=32, group=4, prefill_windows=4),
]


@pytest_asyncio.fixture(loop_scope="session", params=SHAPES, ids=str)
async def shaped(verifier: VllmVerifier, request: pytest.FixtureRequest) -> AsyncIterator[None]:
    await verifier.set_replay_shape(request.param)
    yield
    await settle(verifier)
    assert (await verifier.view()).blocks_used == 0


async def test_flagged_scores_are_those_of_others(
    verifier: VllmVerifier, problem: Problem, shaped: None
) -> None:
    """Whole, step by step behind the cache, and many at once."""
    paths = [
        ScoreRequest(problem=problem, steps=some_steps(32, f"Ann{i}"), deterministic=True)
        for i in range(6)
    ]
    plain = [await verifier.score_whole(replace(path, deterministic=False)) for path in paths]
    together = await asyncio.gather(*(verifier.score(path) for path in paths))
    for path, expected, found in zip(paths, plain, together, strict=True):
        assert found.scores == pytest.approx(expected.scores, abs=1e-5)
        assert (await verifier.score_whole(path)).scores == found.scores
        verifier.clear_score_cache()
        again = await verifier.score(replace(path, num_scored=3))
        assert again.scores == found.scores[3:]
        assert again.cached_tokens % 32 == 0, "whole windows are shared"


async def test_suffix_scoring_gives_the_scores_of_the_whole_path(
    verifier: VllmVerifier, problem: Problem, shaped: None
) -> None:
    steps = some_steps(32, "Bea", times=3)
    path = ScoreRequest(problem=problem, steps=steps, deterministic=True)
    parts = [
        await verifier.score(replace(path, steps=steps[: i + 1], num_scored=i))
        for i in range(len(steps))
    ]
    assert parts[-1].cached_tokens > 0
    assert joined(parts) == (await verifier.score_whole(path)).scores
    plain = joined(await score_by_steps(verifier, problem, steps))
    assert joined(parts) == pytest.approx(plain, abs=1e-5)


async def test_a_small_budget_and_offload_change_no_score(
    verifier: VllmVerifier, problem: Problem, shaped: None
) -> None:
    """A path that loses its memory between two passes begins anew."""
    paths = [
        ScoreRequest(problem=problem, steps=some_steps(32, f"Cy{i}", times=6), deterministic=True)
        for i in range(6)
    ]
    expected = [(await verifier.score_whole(path)).scores for path in paths]
    view = await verifier.view()
    tasks = [asyncio.create_task(verifier.score_whole(path)) for path in paths]
    for keep in (True, False):
        await asyncio.sleep(0.01)
        await verifier.offload(keep=keep)
        await verifier.restore()
        await verifier.budget(0)  # room for one request of full length
    await verifier.budget(view.quota_blocks * view.block_bytes)
    assert [found.scores for found in await asyncio.gather(*tasks)] == expected


async def test_the_self_test_finds_a_shape(verifier: VllmVerifier) -> None:
    found = await choose_score_shape(verifier, Turns(never_wait), on_cpu=True)
    assert found == {"score_shape": {"window": 32, "group": 4, "prefill_windows": 4}}
    assert (await verifier.view()).replays["prefill_passes"] > 0
