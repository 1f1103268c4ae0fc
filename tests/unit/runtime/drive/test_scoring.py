"""Scores: equal paths share one, too long ones have 0, and early ones change no tree."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from flashedge.engine.base import ScoreRequest
from flashedge.errors import ContextOverflow, GenerationFailed, PathOverflow
from flashedge.events import EngineRestarted
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.drive.scoring import ScoreOnce
from flashedge.runtime.request.validation import Request
from flashedge.types import STRATEGIES
from scripts.lab.sim.model import SimModel
from scripts.lab.sim.pair import Faults, SimConfig, SimulatedVerifier
from tests.support.runtime_rig import (
    BEAM,
    CONFIG,
    PROBLEM,
    TIGHT,
    TRACE,
    RecordingVerifier,
    assert_nothing_left,
    both,
    drive,
    drive_alike,
    drive_alone,
    driver_of,
    sim_engines,
)

REQUEST = ScoreRequest(problem=PROBLEM, steps=("Next w1 w2",))
OTHER = replace(REQUEST, steps=("Next w1 w3",))
TWINS = SimModel(TRACE, common=0.7)  # half of all sibling pairs are the same words


def spec_of(strategy: str) -> Request:
    return replace(BEAM, strategy=strategy, n=1 if strategy == "probed_cot" else 8)


def build_once(faults: Faults | None = None) -> tuple[SimulatedVerifier, Any, ScoreOnce]:
    """A verifier, what records its requests, and what asks it once for equal paths."""
    verifier = SimulatedVerifier(CONFIG, faults=faults)
    counting = RecordingVerifier(verifier)
    return verifier, counting, ScoreOnce(counting)


async def test_equal_paths_make_one_request_at_once_and_later() -> None:
    verifier, counting, once = build_once()
    first, *rest = await asyncio.gather(*(once.score(r) for r in [REQUEST, OTHER, REQUEST]))
    rest.append(await once.score(REQUEST))
    assert counting.asked == [REQUEST, OTHER]
    assert first == await verifier.score(REQUEST) != rest[0]
    assert rest[1:] == [replace(first, cached_tokens=first.tokens)] * 2


async def test_the_same_words_behind_others_are_another_path() -> None:
    _, counting, once = build_once()
    paths = [
        replace(REQUEST, steps=(*REQUEST.steps, "Next w9"), num_scored=1),
        replace(OTHER, steps=(*OTHER.steps, "Next w9"), num_scored=1),
        replace(REQUEST, steps=(*REQUEST.steps, "Next w9")),
    ]
    scored = await asyncio.gather(*(once.score(path) for path in paths))
    assert counting.asked == paths
    assert scored[2].scores[1:] == scored[0].scores != scored[1].scores


@pytest.mark.parametrize("cut", [0, 1])
async def test_a_cancelled_request_takes_nothing_from_an_equal_one(cut: int) -> None:
    verifier, _, once = build_once()
    tasks = [asyncio.ensure_future(once.score(REQUEST)) for _ in range(2)]
    await asyncio.sleep(0)
    tasks[cut].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[cut]
    assert (await tasks[1 - cut]).scores == (await verifier.score(REQUEST)).scores


async def test_a_failure_reaches_only_the_request_that_failed() -> None:
    _, counting, once = build_once(Faults(fail_requests=frozenset({0})))
    both = once.score(REQUEST), once.score(REQUEST)
    failed, scored = await asyncio.gather(*both, return_exceptions=True)
    assert isinstance(failed, GenerationFailed)
    assert scored == await SimulatedVerifier(CONFIG).score(REQUEST)
    assert counting.asked == [REQUEST] * 2


@pytest.mark.parametrize("early", [False, True], ids=["by levels", "early"])
@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
async def test_the_tree_stays_the_same(strategy: str, early: bool) -> None:
    spec = spec_of(strategy)
    expected = await drive(sim_engines(model=TWINS).switch(score_once=False), spec)
    faults = Faults(fail_requests=frozenset({1}), die_after_steps=frozenset({3}), restart_s=2.0)
    engines = sim_engines(model=TWINS, verifier=faults).switch(early_scores=early)
    assert (await drive_alone(engines, spec)).outcome == expected.outcome


async def test_duplicates_cost_the_verifier_nothing() -> None:
    asked, expected = [], await drive(sim_engines(model=TWINS), BEAM)
    for on in (False, True):
        engines = sim_engines(model=TWINS)
        counting = RecordingVerifier(engines.verifier)
        engines = replace(engines, verifier=counting).switch(score_once=on)
        assert (await drive(engines, BEAM)).outcome == expected.outcome
        asked.append(len(counting.asked))
    nodes = [n for n in expected.outcome.tree.nodes.values() if n.segment is not None]
    paths = {expected.outcome.tree.path_steps(node.id) for node in nodes}
    assert asked == [len(nodes), len(paths)]
    assert len(paths) < 0.8 * len(nodes)


FITTING_STEPS = 2


def shorten(engines: Engines, error: type[ContextOverflow] = PathOverflow) -> Engines:
    too_long = lambda r: error("it is too long") if len(r.steps) > FITTING_STEPS else None  # noqa: E731
    return replace(engines, verifier=RecordingVerifier(engines.verifier, too_long))


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
async def test_the_search_goes_on(strategy: str) -> None:
    engines = sim_engines()
    tree = (await drive(shorten(engines), spec_of(strategy))).outcome.tree
    if strategy in ("self_consistency", "deepconf", "probed_cot"):
        return  # they need no verifier
    judged = [node for node in tree.nodes.values() if node.scores]
    deep = [node for node in judged if len(tree.path_steps(node.id)) > FITTING_STEPS]
    assert deep
    assert all(set(node.scores or ()) == {0.0} for node in deep)
    if strategy != "best_of_n":  # whole answers are all deep
        assert any(score > 0 for node in judged for score in node.scores or ())
    await assert_nothing_left(engines)


async def test_a_problem_that_leaves_no_room_ends_the_run() -> None:
    engines = sim_engines()
    with pytest.raises(ContextOverflow):
        await drive(shorten(engines, ContextOverflow), BEAM)
    await assert_nothing_left(engines)


# ---------------------------------------------------------------- early scores


def early(engines: Engines) -> Engines:
    """Each engine on a device of its own: neither waits for the other's steps."""
    for engine in both(engines):
        engine._gate = asyncio.Lock()
    return engines.switch(early_scores=True)


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
@pytest.mark.parametrize("config", [CONFIG, TIGHT], ids=["ample", "tight"])
async def test_early_scores_change_no_tree(strategy: str, config: SimConfig) -> None:
    await drive_alike(early(sim_engines(config=config)), spec_of(strategy))


async def test_a_level_waits_for_its_last_scores_only() -> None:
    waited = []
    for on in (False, True):
        engines = early(sim_engines())
        driver = driver_of(engines.switch(early_scores=on), BEAM, lambda event: None)
        began = asyncio.get_running_loop().time()
        await driver.run()
        took_s = asyncio.get_running_loop().time() - began
        waited.append(driver.scoring.waiting.seconds)
        assert driver.generating.seconds + waited[-1] == pytest.approx(took_s)
        assert 0 < waited[-1] < driver.generating.seconds
        assert 0 < driver.scoring.cached_tokens < driver.scoring.tokens
    at_once_s, early_s = waited
    assert early_s < at_once_s


async def test_early_scores_are_noted_only_for_early_commits() -> None:
    for on in (False, True):
        engines = early(sim_engines()).switch(early_commit=on)
        driver = driver_of(engines, BEAM, lambda event: None)
        await driver.run()
        assert bool(driver.scoring.early_scores) is on


async def test_requests_go_out_before_the_search_thinks() -> None:
    """Those of one turn of the event loop go to an engine in the next turn, as from an outbox."""
    engines = early(sim_engines())
    outbox: list[ScoreRequest] = []
    left: list[int] = []

    def send(request: ScoreRequest) -> None:
        if not outbox:
            asyncio.get_running_loop().call_soon(outbox.clear)
        outbox.append(request)

    def look(tree: object, commands: object) -> None:
        left.append(len(outbox))

    verifier = RecordingVerifier(engines.verifier, send)
    await driver_of(replace(engines, verifier=verifier), BEAM, lambda e: None, on_turn=look).run()
    assert len(verifier.asked) > len(left) > 2
    assert not any(left)


async def test_nothing_is_scored_that_the_search_does_not_score() -> None:
    engines = early(sim_engines())
    await drive(engines, replace(BEAM, strategy="self_consistency"))
    assert (await engines.verifier.view()).blocks_used == 0


@pytest.mark.parametrize("which", ["generator", "verifier"])
async def test_a_level_survives_the_death_of_an_engine(which: str) -> None:
    faults = {which: Faults(die_after_steps=frozenset({1, 2, 7}), restart_s=3.0)}
    story = await drive_alike(early(sim_engines(**faults)), BEAM)
    told = [event.engine for event in story.list_events(EngineRestarted)]
    assert told == [which] * len(told) != []
