"""Every strategy through the driver on simulated engines, with and without early exit."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from flashedge import events
from flashedge.answers.extraction import extract_answer
from flashedge.certainty.measures import ENTROPY
from flashedge.runtime.drive.driver import Growth
from flashedge.runtime.records.result import build_result
from flashedge.runtime.request.early_exit import ExitOptions
from flashedge.runtime.request.plan import Plan
from flashedge.runtime.request.strategies import find_defaults
from flashedge.runtime.request.validation import Request
from flashedge.search.tree import ROOT, NodeStatus
from flashedge.types import STRATEGIES, NodeId, Timing, Usage
from scripts.lab.sim.pair import Faults
from tests.support.runtime_rig import (
    BEAM,
    BEST,
    CONFIG,
    TIGHT,
    drive,
    drive_alike,
    drive_alone,
    folded,
    sim_engines,
)

PROBES = {"probe_tokens": 6, "suffix": "\n\nTherefore", "max_probe_tokens": 20}
ALWAYS = ExitOptions(policy="every_step", detect=1, thresholds={ENTROPY: 0.0})


def spec_of(strategy: str, **fields: Any) -> Request:
    told: dict[str, Any] = {"strategy": strategy, **find_defaults(strategy)}
    if strategy == "probed_cot":
        told |= {"options": PROBES, "early_exit": None}
    if strategy == "mcts":
        told["n"] = 3
    return replace(BEAM, **{**told, **fields})


every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)
searching = pytest.mark.parametrize("strategy", [s for s in STRATEGIES if s != "probed_cot"])


async def test_the_events_tell_rollouts_and_answers() -> None:
    """From these a watcher counts the visits of an MCTS tree, and shows the answer of a path."""
    story = await drive(sim_engines(), spec_of("mcts", n=6))
    told = [e for e in story.events if isinstance(e, events.RolloutsEnded)]
    ends = [node for event in told for node in event.nodes]
    tree = story.outcome.tree
    assert len(ends) == 6
    assert {tree[node].status for node in ends} == {NodeStatus.COMPLETE}
    assert len(told) > 1, "they are told while the search runs"
    steps = {e.node: e for e in story.events if isinstance(e, events.StepCompleted)}
    answers = {extract_answer(tree.path_text(node)) for node in ends}
    assert {steps[node].answer for node in ends} == answers
    assert not any(e.answer for e in steps.values() if e.finish == "boundary")


@every_strategy
@pytest.mark.parametrize("aggregate", ["last", "min", "prod", "mean"])
async def test_the_events_tell_the_tree(strategy: str, aggregate: str) -> None:
    spec = spec_of(strategy, aggregate=aggregate)
    story = await drive_alone(sim_engines(), spec)
    done = [n for n in story.outcome.tree.nodes.values() if n.status is NodeStatus.COMPLETE]
    assert len(done) >= spec.n
    assert story.outcome.finish.answer is not None
    assert story.outcome.cut_by is None
    assert not story.list_events(events.EarlyExit)
    checkpoints = story.list_events(events.CertaintyUpdated)
    assert [(e.progress, e.tokens, e.measures) for e in checkpoints] == [
        (r.progress, r.tokens, r.measures) for r in story.outcome.history
    ]
    assert checkpoints[-1].certainty == story.outcome.certainty
    if strategy in ("beam", "best_of_n"):
        assert checkpoints[-1].answers == sum(n.answer is not None for n in done)


@every_strategy
async def test_the_same_tree_in_tight_kv_and_over_a_dead_engine(strategy: str) -> None:
    spec = spec_of(strategy)
    faults = Faults(die_after_steps=frozenset({9}), restart_s=2.0)
    await drive_alike(sim_engines(config=TIGHT), spec)
    story = await drive_alike(sim_engines(generator=faults), spec)
    other = await drive(sim_engines(), replace(spec, seed=spec.seed + 1))
    assert other.outcome.tree != story.outcome.tree


@every_strategy
async def test_a_budget_is_named_as_the_cause(strategy: str) -> None:
    """Whole answers are one level, and a level is never cut."""
    story = await drive(sim_engines(), spec_of(strategy, token_budget=1))
    whole = strategy in ("best_of_n", "self_consistency")
    assert story.outcome.cut_by == (None if whole else "budget")
    grouped = replace(ALWAYS, policy="every_5", thresholds={ENTROPY: 1.0})
    if whole:
        story = await drive(sim_engines(), spec_of(strategy, token_budget=1, early_exit=grouped))
        assert story.outcome.cut_by == "budget"


@searching
async def test_certainty_stops_the_run(strategy: str) -> None:
    whole = await drive(sim_engines(), spec_of(strategy))
    spec = spec_of(strategy, early_exit=ALWAYS)
    story = await drive_alone(sim_engines(), spec)
    outcome = story.outcome
    assert outcome.cut_by == "certainty"
    (checkpoint,) = outcome.history
    assert checkpoint.progress < spec.n
    assert outcome.tree.committed_tokens < whole.outcome.tree.committed_tokens
    told = events.EarlyExit(reason="certainty", tokens=outcome.tree.committed_tokens)
    assert story.list_events(events.EarlyExit) == [told]
    for node, seen in folded(story.events).items():  # a stopped run is the beginning of a whole one
        assert seen.token_ids == folded(whole.events)[node].token_ids
    result = build_result("run-1", Plan(request=spec), outcome, Usage(), Timing())
    assert (result["cut_by"], result["certainty"]) == ("certainty", outcome.certainty)


@searching
async def test_a_run_that_never_settles_is_given_up(strategy: str) -> None:
    never = ExitOptions(thresholds={ENTROPY: 1.0}, detect=1, give_up_after=2, give_up_below=1.0)
    spec = spec_of(strategy, n=6, early_exit=never)
    cuts = [(await drive(sim_engines(), replace(spec, seed=s))).outcome.cut_by for s in range(8)]
    assert "non_convergence" in cuts


async def test_open_ended_answers_are_grouped_by_wording() -> None:
    """Boxes still decide where there are some; the last step is the answer elsewhere."""
    boxed = await drive(sim_engines(), spec_of("self_consistency"))
    text = await drive(sim_engines(), spec_of("self_consistency", answers="text"))
    assert text.outcome.finish.answer == boxed.outcome.finish.answer
    cut = spec_of("self_consistency", answers="text", max_path_tokens=4)
    story = await drive(sim_engines(), cut)
    assert story.outcome.finish.answer is not None
    assert story.outcome.finish.answer in story.outcome.tree.path_text(story.outcome.finish.choice)


# ---------------------------------------------------------------- probes


@pytest.mark.parametrize("beside", [True, False])
async def test_probes_never_touch_the_chain(beside: bool) -> None:
    for seed in range(10):
        options = {**PROBES, "beside": beside}
        spec = spec_of("probed_cot", seed=seed, options=options)
        probed = await drive(sim_engines(), spec)
        plain = await drive(sim_engines(), replace(spec, options={"probe_tokens": 0}))
        ids = [s.outcome.tree.path_token_ids(s.outcome.finish.choice) for s in (probed, plain)]
        assert ids[0] == ids[1]
        assert probed.outcome.tree.committed_tokens == plain.outcome.tree.committed_tokens
        told = probed.list_events(events.Probed)
        assert len(told) == len(probed.outcome.history) > 0
        assert all(e.tokens > 0 for e in told)
        assert not plain.list_events(events.Probed)


@pytest.mark.parametrize("beside", [True, False])
async def test_probes_that_agree_end_the_chain(beside: bool) -> None:
    options = {**PROBES, "probe_tokens": 4, "window": 2, "beside": beside}
    stopped = 0
    for seed in range(12):
        spec = spec_of("probed_cot", seed=seed, options=options, early_exit=ExitOptions())
        story = await drive_alone(sim_engines(), spec)
        whole = await drive(sim_engines(), replace(spec, early_exit=None))
        chain = whole.outcome.tree.path_token_ids(whole.outcome.finish.choice)
        ids = story.outcome.tree.path_token_ids(story.outcome.finish.choice)
        assert chain[: len(ids)] == ids
        if story.outcome.cut_by == "certainty":
            stopped += 1
            assert len(ids) < len(chain)
            said = [e.text for e in story.list_events(events.Probed)]
            assert story.outcome.certainty == 1.0
            assert all(f"{{{story.outcome.finish.answer}}}" in text for text in said[-2:])
    assert stopped >= 3


async def test_a_chain_that_never_settles_is_given_up() -> None:
    options = {**PROBES, "probe_tokens": 2, "give_up_after": 3, "give_up_below": 1.0, "window": 30}
    spec = spec_of("probed_cot", options=options, early_exit=ExitOptions())
    cuts = [(await drive(sim_engines(), replace(spec, seed=s))).outcome.cut_by for s in range(12)]
    assert "non_convergence" in cuts
    assert "certainty" not in cuts


# ---------------------------------------------------------------- counted votes


BY_SCORE = replace(BEST, n=16, early_exit=ExitOptions())
BY_VOTE = replace(BY_SCORE, strategy="self_consistency", selection="majority")
SPECS = pytest.mark.parametrize("spec", [BY_VOTE, BY_SCORE], ids=lambda spec: spec.strategy)


@SPECS
async def test_a_batch_of_any_size_gives_the_same_tree(spec: Request) -> None:
    saved = 0
    for seed in range(12):
        asked = replace(spec, seed=seed)
        for config in (replace(CONFIG, max_num_seqs=1), replace(CONFIG, max_num_seqs=3), TIGHT):
            story = await drive_alike(sim_engines(config=config), asked)
        drawn = [node.status for node in story.outcome.tree.children(ROOT)]
        assert set(drawn) <= {NodeStatus.COMPLETE, NodeStatus.CANCELLED}
        saved += asked.n - len(drawn)
    assert saved > 0


@pytest.mark.parametrize(
    ("spec", "steps"), [(BY_VOTE, (3, 9, 15)), (spec_of("probed_cot"), range(3, 30, 3))]
)
async def test_a_killed_engine_changes_nothing(spec: Request, steps: Sequence[int]) -> None:
    for step in steps:
        faults = Faults(die_after_steps=frozenset({step}), restart_s=2.0)
        await drive_alike(sim_engines(generator=faults), spec)


def test_a_watched_node_is_told_of_once() -> None:
    growth, node = Growth(lambda ids: ""), NodeId(1)
    assert growth.watch({node: 3}) == []  # it has not begun
    growth.start(node)
    told = [growth.add(node, ids) for ids in ((1, 2), (3, 4), (5,))]
    assert told == [False, True, False]
    assert growth.watch({node: 5}) == [node]
    assert growth.watch({node: 7}) == []
    growth.start(node)  # the engine died: the path begins once more
    assert growth.add(node, (1, 2, 3, 4, 5, 6)) is False
    assert growth.add(node, (7,)) is True
