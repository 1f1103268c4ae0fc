"""The flag on requests to both engines. In fp32 it changes no token and no score."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from flashedge.engine.base import ExtendRequest, ScoreRequest
from flashedge.engine.self_test_turns import Turns
from flashedge.engine.vllm.generator import VllmGenerator
from flashedge.engine.vllm.shape_probe import choose_score_shape, choose_shape
from flashedge.engine.vllm.verifier import VllmVerifier
from flashedge.errors import RequestError
from flashedge.scheduling.determinism import PassShape
from flashedge.search.step_rules import EntropyRule
from flashedge.types import FinishReason, Problem
from tests.engine.test_speculation_on_vllm import continued
from tests.support.engine_rig import ask, generate, joined, score_by_steps, settle, some_steps


def list_requests(generator: VllmGenerator, problem: Problem) -> list[ExtendRequest]:
    """Steps, answers, a step that ends before an uncertain token, and long prompts."""
    steps = [
        ask(generator, problem, seed=seed, max_tokens=60, to_boundary=True) for seed in range(4)
    ]
    answers = [replace(request, to_boundary=False, max_tokens=120) for request in steps]
    uncertain = replace(
        steps[0], to_boundary=False, entropy_rule=EntropyRule(threshold=1.0, min_tokens=3)
    )
    behind = [ask(generator, problem, seed=9, after=(50 + i,) * 130, max_tokens=40) for i in (0, 1)]
    return [*steps, *answers, uncertain, *behind]


async def test_flagged_requests_give_the_tokens_of_others(
    generator: VllmGenerator, problem: Problem
) -> None:
    plain = list_requests(generator, problem)
    flagged = [replace(request, deterministic=True) for request in plain]
    expected = [await generate(generator, request) for request in plain]
    together = await asyncio.gather(*(generate(generator, r) for r in (*flagged, *plain)))
    for request, one, other in zip(flagged, expected, together, strict=False):
        assert one.token_ids == other.token_ids, request
        assert one.finish == other.finish
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    assert FinishReason.BOUNDARY in {one.finish for one in expected[:4]}
    await settle(generator)


async def test_offload_and_a_small_budget_change_nothing(
    generator: VllmGenerator, problem: Problem
) -> None:
    requests = [replace(r, deterministic=True) for r in list_requests(generator, problem)]
    expected = [(await generate(generator, request)).token_ids for request in requests]
    view = await generator.view()
    tasks = [asyncio.create_task(generate(generator, request)) for request in requests]
    await asyncio.sleep(0.02)
    for keep in (True, False):
        await generator.offload(keep=keep)
        await asyncio.sleep(0.01)
        await generator.restore()
        await generator.budget(0)  # room for one request of full length
        await asyncio.sleep(0.02)
    await generator.budget(view.quota_blocks * view.block_bytes)
    outcomes = await asyncio.gather(*tasks)
    assert [outcome.token_ids for outcome in outcomes] == expected


async def test_what_cannot_be_verified_is_refused(
    generator: VllmGenerator, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = replace(ask(generator, problem), deterministic=True)
    with pytest.raises(RequestError, match="a deterministic request can't have an answer that"):
        await generate(generator, replace(request, guidance={"regex": "a"}))
    monkeypatch.setattr(generator, "options", replace(generator.options, second_runner=True))
    with pytest.raises(RequestError, match="feature second_runner"):
        await generate(generator, request)


async def test_the_self_test_finds_a_shape(generator: VllmGenerator) -> None:
    """In fp32 every shape holds on a CPU, so it takes the cheapest."""
    found = await choose_shape(generator, Turns(), on_cpu=True)
    assert found["position_invariant"]
    assert found["replay_shape"] == {"window": 32, "group": 4, "prefill_windows": 4}
    counters = (await generator.view()).replays
    assert counters["verify_passes"] > 0


async def test_drafts_of_deterministic_requests_are_verified_too(
    generator: VllmGenerator, problem: Problem
) -> None:
    """Steps that adopt drafts have the tokens that they have without, and nothing leaks."""
    before = await generator.process.call("get_counters")
    path: tuple[int, ...] = ()
    for level, limit in enumerate((20, 33, 31, 6, 40)):
        child = ask(generator, problem, seed=1, after=path, max_tokens=limit, deterministic=True)
        slow = replace(child, seed=2 + level, max_tokens=100)
        beams = [continued(request, level, 90, 70 + level) for request in (child, slow)]
        found, _ = await asyncio.gather(*(generate(generator, beam) for beam in beams))
        expected = await generate(generator, replace(child, deterministic=False))
        assert (found.token_ids, found.finish) == (expected.token_ids, expected.finish)
        path += found.token_ids
        await generator.speculator.drop_unused("r", (level + 1,), (1,))
    after = await generator.process.call("get_counters")
    assert after["drawn_tokens"] > before["drawn_tokens"]
    assert after["kept_tokens"] > before["kept_tokens"], "a verified draft was adopted"
    await generator.speculator.end_run("r")
    await settle(generator)


async def test_children_share_the_verified_path_of_their_parent(
    generator: VllmGenerator, problem: Problem
) -> None:
    """In whole windows, and nobody else finds them."""
    window = 32
    await generator.set_replay_shape(PassShape(window=window))
    parent = ask(generator, problem, seed=31, max_tokens=90)
    prompt = (*range(60, 131), *parent.token_ids)  # nobody has had it before
    parent = replace(parent, token_ids=prompt, deterministic=True)
    path = (*parent.token_ids, *(await generate(generator, parent)).token_ids)
    assert len(path) > len(parent.token_ids) + window, "some windows were drawn"
    child = replace(parent, token_ids=path, seed=32, max_tokens=5)
    shared = await generate(generator, child)
    assert shared.cached_tokens == (len(path) - 1) // window * window
    stranger = await generate(generator, replace(child, deterministic=False))
    assert stranger.cached_tokens == 0
    assert stranger.token_ids == shared.token_ids


# ---------------------------------------------------------------- the verifier


SHAPES = [
    PassShape(window=32),
    PassShape(window=32, group=4),
    PassShape(window=32, group=4, prefill_windows=4),
]


@pytest_asyncio.fixture(loop_scope="session", params=SHAPES, ids=str)
async def shaped(verifier: VllmVerifier, request: pytest.FixtureRequest) -> AsyncIterator[None]:
    await verifier.set_replay_shape(request.param)
    yield
    await settle(verifier)


def list_paths(problem: Problem, name: str, times: int = 1) -> list[ScoreRequest]:
    written = [some_steps(32, f"{name}{i}", times) for i in range(6)]
    return [ScoreRequest(problem=problem, steps=steps, deterministic=True) for steps in written]


async def test_flagged_scores_are_those_of_others(
    verifier: VllmVerifier, problem: Problem, shaped: None
) -> None:
    """Whole, step by step behind the cache, and many at once."""
    paths = list_paths(problem, "Ann")
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
    parts = await score_by_steps(verifier, problem, steps, deterministic=True)
    assert parts[-1].cached_tokens > 0
    assert joined(parts) == (await verifier.score_whole(path)).scores
    plain = joined(await score_by_steps(verifier, problem, steps))
    assert joined(parts) == pytest.approx(plain, abs=1e-5)


async def test_a_small_budget_and_offload_change_no_score(
    verifier: VllmVerifier, problem: Problem, shaped: None
) -> None:
    """A path that loses its memory between two passes begins again."""
    paths = list_paths(problem, "Cy", times=6)
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


async def test_the_self_test_finds_a_shape_of_scores(verifier: VllmVerifier) -> None:
    found = await choose_score_shape(verifier, Turns(), on_cpu=True)
    assert found == {"score_shape": {"window": 32, "group": 4, "prefill_windows": 4}}
    assert (await verifier.view()).replays["prefill_passes"] > 0
