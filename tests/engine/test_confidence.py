"""Searches by confidence on the real engines: the confidences are the model's, and the same paths
end at the same tokens in every way to compute them."""

import asyncio
from contextlib import aclosing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from flashedge.certainty.token_confidence import LOWEST, find_threshold, measure_path
from flashedge.config import load_config
from flashedge.engine.vllm.generator import VllmGenerator
from flashedge.engine.vllm.pair import VllmPair
from flashedge.models.registry import find_pair
from flashedge.optimizations import Optimizations
from flashedge.runtime.drive.driver import Outcome
from flashedge.runtime.drive.earlier_run import EarlierRun
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.request.early_exit import ExitOptions
from flashedge.search.step_rules import TOP
from flashedge.search.tree import ROOT, NodeStatus
from flashedge.types import FinishReason, Sampling
from scripts.bench.certainty.score import Scorer
from tests.engine.test_driver_on_vllm import BEST, EASY, HARD
from tests.engine.test_entropy_rule import TOLERANCE, load_model
from tests.engine.test_guided_steps import guide
from tests.support.engine_rig import ask, assert_idle
from tests.support.runtime_rig import Story, drive, driver_of

WINDOW, KEEP, WARM_UP = 8, 0.25, 6
HOT = Sampling(temperature=1.2)
PAIR = find_pair("bundled", load_config({}))
SEARCH = replace(
    BEST, strategy="deepconf", n=12, sampling=HOT, options={"window": WINDOW, "keep": KEEP}
)
AGREEING = replace(SEARCH, early_exit=ExitOptions())


async def test_confidences_are_those_of_the_model(generator: VllmGenerator) -> None:
    request = ask(generator, HARD[0], seed=3, max_tokens=64, temperature=1.0, confidences=True)
    for each_token in (False, True):
        async with aclosing(generator.extend(replace(request, each_token=each_token))) as stream:
            chunks = [chunk async for chunk in stream]
        drawn = tuple(token for chunk in chunks for token in chunk.token_ids)
        found = [value for chunk in chunks for value in chunk.confidences]
        model = load_model(str(generator.options.model))
        with torch.inference_mode():
            logits = model(torch.tensor([[*request.token_ids, *drawn]])).logits[0].double()
        rows = logits[len(request.token_ids) - 1 : -1].log_softmax(-1)
        expected = -rows.topk(TOP).values.mean(-1)
        assert found == pytest.approx(expected.tolist(), abs=10 * TOLERANCE)
        assert {chunk.entropies for chunk in chunks} == {()}
    scorer = Scorer(cast(VllmPair, SimpleNamespace(generator=generator)), PAIR, cut=64, say="")
    prefilled = await scorer.measure_confidences(request.token_ids, drawn)
    assert prefilled == pytest.approx(found, abs=10 * TOLERANCE), "as `votes` replays it"
    async with aclosing(generator.extend(replace(request, confidences=False))) as stream:
        assert {chunk.confidences async for chunk in stream} == {()}, "only where they are asked"


def check_ends(outcome: Outcome) -> int:
    """Count the paths that were ended early, after checking that each ended in time."""
    paths = [node.segment for node in outcome.tree.children(ROOT)]
    assert {node.status for node in outcome.tree.children(ROOT)} == {NodeStatus.COMPLETE}
    surest = [measure_path(p.confidences, WINDOW, LOWEST) for p in paths[:WARM_UP] if p is not None]
    least = find_threshold(surest, KEEP)
    ended = 0
    for number, path in enumerate(paths):
        assert path is not None
        values, is_unsure = path.confidences, path.finish is FinishReason.UNSURE
        assert len(values) == len(path.token_ids)
        if number < WARM_UP:
            assert not is_unsure
        else:
            assert (measure_path(values, WINDOW, LOWEST) < least) == is_unsure
            assert not is_unsure or measure_path(values[:-1], WINDOW, LOWEST) >= least
            ended += is_unsure
    return ended


async def test_unsure_paths_end_at_the_same_token_in_every_way(
    engines: Engines, stock: Engines
) -> None:
    """Alone, beside others, with and without the optimizations, and by a stock loop. The paths that
    are not ended are those of a plain vote."""
    alone = await drive(engines, SEARCH)
    assert check_ends(alone.outcome) >= 2
    plain = (await drive(engines, replace(SEARCH, strategy="best_of_n", options={}))).outcome
    for ours, theirs in zip(
        alone.outcome.tree.children(ROOT), plain.tree.children(ROOT), strict=True
    ):
        assert ours.segment is not None
        assert theirs.segment is not None
        size = ours.num_tokens
        assert ours.segment.token_ids == theirs.segment.token_ids[:size]
        assert size == theirs.num_tokens or ours.segment.finish is FinishReason.UNSURE
    others = [replace(SEARCH, problem=problem, seed=5) for problem in HARD[1:4]]
    together = await asyncio.gather(*(drive(engines, each) for each in (SEARCH, *others)))
    assert together[0].outcome == alone.outcome
    assert (await drive(stock, SEARCH)).outcome == alone.outcome
    ways: list[dict[str, Any]] = [{"token_drafts": False}, {"joined_tokens": False}]
    for way in (*ways, vars_of(Optimizations.none())):
        assert (await drive(engines.switch(**way), SEARCH)).outcome == alone.outcome, way
    flagged = await drive(engines, replace(SEARCH, deterministic=True))
    assert list_tokens(flagged.outcome) == list_tokens(alone.outcome)
    await assert_idle(engines)


def list_tokens(outcome: Outcome) -> list[tuple[int, ...]]:
    return [outcome.tree.path_token_ids(node.id) for node in outcome.tree.children(ROOT)]


def vars_of(optimizations: Optimizations) -> dict[str, Any]:
    return {name: getattr(optimizations, name) for name in Optimizations.__dataclass_fields__}


async def test_a_search_stops_where_its_answers_agree(engines: Engines) -> None:
    """It tells its certainty after the warm-up and after each further path."""
    story = await drive(engines, AGREEING)
    told = [event for event in story.events if type(event).__name__ == "CertaintyUpdated"]
    assert [event.progress for event in told] == list(range(WARM_UP, WARM_UP + len(told)))
    assert all(event.certainty == event.measures["consensus"] for event in told)
    assert (story.outcome.cut_by == "certainty") == (told[-1].certainty >= 0.95)


async def test_a_search_stops_after_a_warm_up_that_agrees(engines: Engines) -> None:
    """At a low temperature the paths of an easy problem say the same."""
    sure = replace(AGREEING, problem=EASY[0], sampling=Sampling(temperature=0.1))
    outcome = (await drive(engines, sure)).outcome
    assert (len(outcome.tree.children(ROOT)), outcome.cut_by) == (WARM_UP, "certainty")
    assert outcome.history[-1].measures["consensus"] == 1.0


async def test_confidences_under_a_grammar_are_finite(generator: VllmGenerator) -> None:
    """Where it allows one token alone, they are 0, and these tokens end no path."""
    asked = ask(generator, HARD[0], seed=3, max_tokens=24, temperature=1.0, confidences=True)
    async with aclosing(generator.extend(guide(asked))) as stream:
        found = [value async for chunk in stream for value in chunk.confidences]
    assert found
    assert all(0 <= value < 40 for value in found)
    assert 0.0 in found


async def test_an_ended_search_goes_on_from_what_it_had(engines: Engines) -> None:
    """A budget ends it after the warm-up; what it had is not computed again."""
    whole = await drive(engines, AGREEING)
    first: Story = await drive(engines, replace(AGREEING, token_budget=1))
    assert len(first.outcome.tree.children(ROOT)) == WARM_UP
    earlier = EarlierRun.from_events(first.events)
    driver = driver_of(engines, AGREEING, lambda event: None, earlier=earlier)
    assert await driver.run() == whole.outcome


async def test_nothing_is_left_of_a_cancelled_search(engines: Engines) -> None:
    for turns in (3, 30, 100):
        task = asyncio.create_task(drive(engines, replace(SEARCH, seed=turns)))
        for _ in range(turns):
            await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await assert_idle(engines)
