"""Replay of policies on whole runs: what a real early exit of the same seed does."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from flashedge import events
from flashedge.certainty.calibration import Ending, RunTrace, find_stop, replay
from flashedge.certainty.measures import (
    CONSENSUS,
    CONSISTENCY,
    ENTROPY,
    REWARD,
    Checkpoint,
    History,
)
from flashedge.certainty.policies import POLICIES, Allotment, Rule
from flashedge.runtime.drive.driver import Outcome
from flashedge.runtime.records.recordings import Recording, build_recording
from flashedge.runtime.records.result import build_result
from flashedge.runtime.request.early_exit import ExitOptions
from flashedge.runtime.request.plan import Plan
from flashedge.runtime.request.strategies import find_defaults
from flashedge.runtime.request.validation import Request
from flashedge.types import Timing, Usage
from scripts.lab.sim.clock import VirtualTimePolicy
from tests.support.runtime_rig import BEAM, Story, drive, sim_engines

PROBES = {"probe_tokens": 3, "suffix": "\n\nTherefore", "max_probe_tokens": 20, "window": 2}
IN_TREES = "rebase in trees"
VOTES = "self_consistency", "best_of_n"
SEEDS = 2
NEVER = Rule(policy="static", detect=1, thresholds=(("entropy", 2.0),))


@pytest.fixture
def event_loop_policy() -> VirtualTimePolicy:
    return VirtualTimePolicy()


def spec_of(strategy: str, **fields: Any) -> Request:
    told: dict[str, Any] = {**find_defaults(strategy), "strategy": strategy, "early_exit": None}
    if strategy == "probed_cot":
        told["options"] = PROBES
    if strategy == IN_TREES:
        told |= {"strategy": "rebase", "options": {"width": 3}}
    return replace(BEAM, **{**told, **fields})


def log_of(story: Story, spec: Request) -> list[events.Event]:
    usage = Usage(tree_tokens=story.outcome.tree.committed_tokens)
    result = build_result("run-1", Plan(request=spec), story.outcome, usage, Timing())
    return [
        events.RunStarted(config=spec.to_json(), queue_s=0.0),
        *story.events,
        events.RunFinished(result=result),
    ]


async def recorded(spec: Request) -> Recording:
    story = await drive(sim_engines(), spec)
    stored = [events.from_json(events.to_json(event)) for event in log_of(story, spec)]
    found = build_recording("run-1", stored)
    assert found is not None
    return found


def rules(strategy: str) -> list[Rule]:
    if strategy == "probed_cot":
        sure: list[tuple[tuple[str, float], ...]] = [((CONSISTENCY, 1.0),), ((CONSISTENCY, 0.0),)]
    else:
        sure = [((ENTROPY, least),) for least in (0.0, 0.3, 0.6, 1.0)]
        if strategy == "deepconf":
            sure += [((CONSENSUS, least),) for least in (0.5, 0.95)]
        elif strategy != "self_consistency":
            sure.append(((ENTROPY, 0.3), (REWARD, 0.5)))
    return [
        Rule(policy=policy, detect=detect, thresholds=least)
        for policy, detect, least in product(POLICIES, (1, 4), sure)
    ]


STRATEGIES = (*VOTES, "deepconf", "mcts", "rebase", IN_TREES, "beam", "dvts", "probed_cot")


async def exit_early(spec: Request, whole: Recording, rule: Rule) -> Outcome:
    """End a run early, and check that the replay of the whole one costs as much."""
    real = await drive(sim_engines(), replace(spec, early_exit=ExitOptions().take_rule(rule)))
    spent = replay(whole.build_trace(whole.answers), rule)
    probed = sum(event.tokens for event in real.list_events(events.Probed))
    expected = real.outcome.tree.committed_tokens, probed
    assert (spent.tokens, spent.overhead) == expected, (spec.seed, rule)
    return real.outcome


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_replay_is_what_an_early_exit_does(strategy: str) -> None:
    stopped = 0
    for seed in range(SEEDS):
        spec = spec_of(strategy, seed=seed)
        whole = await recorded(spec)
        for rule in rules(strategy):
            real = await exit_early(spec, whole, rule)
            at = find_stop(whole.checkpoints, rule, whole.cap)
            answer = whole.answer if at is None else whole.checkpoints[at].answer
            assert answer == real.finish.answer, (seed, rule)
            stopped += real.cut_by == "certainty"
            if at is not None and real.cut_by == "certainty":
                assert dict(whole.checkpoints[at].measures) == real.history[-1].measures
                assert whole.checkpoints[at].progress == real.history[-1].progress
    assert stopped >= SEEDS


@pytest.mark.parametrize("beside", [True, False])
async def test_probes_beside_and_before(beside: bool) -> None:
    rule = Rule(policy="every_step", detect=1, thresholds=((CONSISTENCY, 1.0),))
    for seed in range(20):
        spec = spec_of("probed_cot", options={**PROBES, "beside": beside}, seed=seed)
        await exit_early(spec, await recorded(spec), rule)


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_rule_that_is_never_met_is_the_whole_run(strategy: str) -> None:
    spec = spec_of(strategy)
    whole = await recorded(spec)
    right = frozenset({whole.answer} - {None})
    spent = replay(whole.build_trace(right), NEVER)
    assert (spent.right, spent.tokens) == (True, whole.tokens)
    progress, tokens = zip(*((c.progress, c.tokens) for c in whole.checkpoints), strict=True)
    assert [*progress, *tokens] == [*sorted(progress), *sorted(tokens)]
    if strategy in VOTES:
        assert progress == tuple(range(1, spec.n + 1))


async def test_only_whole_runs_are_recorded() -> None:
    spec = spec_of("self_consistency")
    story = await drive(sim_engines(), spec)
    log = log_of(story, spec)
    assert build_recording("r", log) is not None
    assert build_recording("r", log[1:]) is None, "not started"
    assert build_recording("r", log[:-1]) is None, "not finished"
    watched = replace(spec, early_exit=ExitOptions(thresholds={ENTROPY: 1.0}))
    for other in (watched, replace(spec, deadline_s=0.01)):
        assert build_recording("r", log_of(await drive(sim_engines(), other), other)) is None
    old = [replace(e, answer=None) if isinstance(e, events.CertaintyUpdated) else e for e in log]
    assert build_recording("r", old) is None


def test_a_policy_is_told_only_what_it_would_have_seen() -> None:
    seen: list[list[int]] = []

    class Spy:
        def allot(self, history: History, cap: int) -> Allotment:
            seen.append([checkpoint.progress for checkpoint in history])
            return Allotment(more=3 if len(history) < 2 else 0)

    checkpoints = tuple(
        Checkpoint(progress=k, tokens=k, answers=k, measures={}) for k in (1, 2, 5, 6, 9, 10)
    )
    assert find_stop(checkpoints, Spy(), 12) == 4
    assert seen == [[], [5], [5, 9]]
    assert find_stop(checkpoints[:4], Spy(), 12) is None


def test_a_trace_has_a_stop_for_each_checkpoint() -> None:
    seen = (Checkpoint(progress=1, tokens=1, answers=1, measures={}),)
    with pytest.raises(ValueError, match="1 checkpoints, 0 stops"):
        RunTrace(problem="p", cap=1, checkpoints=seen, stops=(), whole=Ending(right=True, tokens=1))
