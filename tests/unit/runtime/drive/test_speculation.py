"""Speculation and lookahead through the driver on simulated engines: what they save and what they
never change.

The paper's public artifact loses a beam that completes while it still has speculated steps, and
lets "completed" overshoot n. Each has a test here.
"""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from flashedge.engine.base import ScoreRequest
from flashedge.errors import ContextOverflow
from flashedge.runtime.request.validation import Request
from flashedge.search.tree import NodeStatus
from flashedge.types import FinishReason, Speculation
from scripts.lab.sim.clock import run_virtual
from scripts.lab.sim.generator import SimSpeculator
from scripts.lab.sim.model import SimModel
from tests.support.runtime_rig import RecordingVerifier, assert_nothing_left, both
from tests.support.service_rig import Serve
from tests.support.speculation_rig import (
    AMPLE,
    TRACE,
    DrivenRun,
    drive_run,
    engines_with,
    get_generator,
    spec_for,
)

PROBLEMS = range(6)
WIDE = {"n": 16}


def drive(spec: Request, **engines: Any) -> DrivenRun:
    async def main() -> DrivenRun:
        return await drive_run(engines_with(**engines), spec)

    return run_virtual(main())


# ---------------------------------------------------------------- what it saves


@pytest.mark.parametrize("strategy", ["beam", "dvts", "rebase", "dynamic_branching"])
def test_the_same_tree_in_less_time(strategy: str) -> None:
    off_s = on_s = 0.0
    steps = kept = 0
    for problem in PROBLEMS:
        spec = spec_for(problem, strategy=strategy, **WIDE)
        off, on = drive(spec, speculation=False), drive(spec, lookahead=False)
        assert on.outcome == off.outcome
        assert off.speculation == Speculation()
        off_s, on_s = off_s + off.seconds, on_s + on.seconds
        steps += sum(node.segment is not None for node in on.outcome.tree.nodes.values())
        kept += on.speculation.kept_steps
        assert 0 < on.speculation.kept_tokens <= on.speculation.drawn_tokens
    assert on_s < 0.97 * off_s
    assert kept >= 0.2 * steps


def test_levels_that_are_too_wide_are_not_drafted() -> None:
    """A search of 16 paths gets narrower as paths end. A level of at most 12 is drafted."""
    spec = spec_for(0, strategy="dynamic_branching", **WIDE)
    engines = engines_with(lookahead=False)
    generator = get_generator(engines)
    generator.most_drafted = 12
    run = run_virtual(drive_run(engines, spec))
    assert run.outcome == drive(spec, speculation=False).outcome
    assert 0 < run.speculation.kept_steps < drive(spec, lookahead=False).speculation.kept_steps
    drafted = [request.continuation is not None for request in generator.requests]
    assert drafted == [request.token_drafts for request in generator.requests]
    assert {True, False} == set(drafted)


@pytest.mark.parametrize("rule", ["markers", "tokens"])
def test_other_step_rules_give_the_same_tree_too(rule: str) -> None:
    """Steps and their drafts end by the run's rule. Steps of one length leave no slot for a
    draft."""
    spec, engines = spec_for(0, step_rule=rule, max_step_tokens=24, **WIDE), engines_with()
    off, on = drive(spec, speculation=False), run_virtual(drive_run(engines, spec))
    assert on.outcome == off.outcome
    assert (on.speculation.kept_steps > 0) is (rule == "markers")
    holds = engines.generator.codec.rules[rule].holds
    segments = [n.segment for n in on.outcome.tree.nodes.values() if n.segment is not None]
    assert any(s.finish is FinishReason.BOUNDARY for s in segments) is (rule == "markers")
    for segment in segments:
        assert (segment.token_ids[-1] in holds) is (segment.finish is FinishReason.BOUNDARY)
        assert segment.steps == (segment.text,)
    for request in get_generator(engines).requests:
        assert request.step_rule == request.continuation.step_rule == rule


async def test_drafts_run_only_while_a_step_is_waited_for() -> None:
    engines = engines_with()
    await drive_run(engines, spec_for(0, **WIDE))
    batches = get_generator(engines).batches
    assert all(b.standard for b in batches)
    assert any(b.drafts for b in batches)
    off = engines_with(speculation=False)
    await drive_run(off, spec_for(0, **WIDE))
    assert len(batches) < len(get_generator(off).batches)


def test_the_more_a_sequence_costs_the_fewer_drafts_there_are() -> None:
    drawn, seconds = [], []
    for sequence_s in (0.0, 1e-4, 1.0):
        config = replace(AMPLE, device=replace(AMPLE.device, sequence_s=sequence_s))
        for speculation in (False, True):
            runs = [
                drive(spec_for(problem, **WIDE), config=config, speculation=speculation)
                for problem in PROBLEMS
            ]
            seconds.append(sum(run.seconds for run in runs))
        drawn.append(sum(run.speculation.drawn_tokens for run in runs))
    assert drawn[0] > drawn[1] > drawn[2]
    assert seconds[1] < 0.97 * seconds[0]
    assert seconds[5] < 1.02 * seconds[4]


async def test_every_drafted_token_is_kept_or_wasted() -> None:
    engines = engines_with()
    for problem in PROBLEMS:
        generator = get_generator(engines)
        generator.chunks.clear()
        found = (await drive_run(engines, spec_for(problem))).speculation
        kept = [c.speculated_tokens for c in generator.chunks if c.speculated_tokens]
        assert (sum(kept), len(kept)) == (found.kept_tokens, found.kept_steps)
        assert found.wasted_tokens == found.drawn_tokens - found.kept_tokens >= 0
    await assert_nothing_left(engines)


# ---------------------------------------------------------------- early commit


@pytest.mark.parametrize("strategy", ["beam", "dvts", "rebase", "dynamic_branching"])
def test_children_of_certain_nodes_are_drafted_sooner(strategy: str) -> None:
    """All tokens that are drawn for them are used."""
    seconds = dict.fromkeys((False, True), 0.0)
    commits = 0
    for problem in PROBLEMS:
        spec = spec_for(problem, strategy=strategy, **WIDE)
        runs = {}
        for on in seconds:
            engines = engines_with(lookahead=False).switch(early_scores=True, early_commit=on)
            both(engines)[1]._gate = asyncio.Lock()  # a device of its own
            runs[on] = run = run_virtual(drive_run(engines, spec))
            seconds[on] += run.seconds
            assert (run.speculation.certain_tokens > 0) <= (run.speculation.early_commits > 0) <= on
            assert run.speculation.certain_tokens <= run.speculation.kept_tokens
        assert runs[True].outcome == runs[False].outcome
        commits += runs[True].speculation.early_commits
    assert commits > 0
    assert seconds[True] <= seconds[False] * (0.99 if strategy in ("beam", "dvts") else 1.02)


@pytest.mark.parametrize("strategy", ["beam", "dvts", "rebase", "dynamic_branching"])
def test_what_was_committed_is_what_the_search_keeps(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where siblings often write the same: then the one with the lowest id is kept."""
    commits = 0
    for problem in PROBLEMS:
        spec = spec_for(problem, strategy=strategy, aggregate="min", **WIDE)
        told: list[tuple[int, int]] = []

        async def note(self: Any, run: str, level: int, children: Any, told: Any = told) -> None:
            told += children.items()
            self.board.commit(run, level, children)

        monkeypatch.setattr(SimSpeculator, "commit", note)
        model = SimModel(TRACE, common=0.5)
        engines = engines_with(model=model, lookahead=False).switch(early_scores=True)
        tree = run_virtual(drive_run(engines, spec)).outcome.tree
        for seed, count in told:
            assert any(
                [child.seed for child in tree.children(node)][:1] == [seed]
                and len(tree.children(node)) >= count
                for node in tree.nodes
            )
        commits += len(told)
    assert commits > 0


def test_nothing_is_committed_without_early_scores_or_drafts() -> None:
    spec = spec_for(0, **WIDE)
    for switches in ({"early_scores": False}, {"early_scores": True, "speculation": False}):
        engines = engines_with(lookahead=False).switch(**switches)
        assert run_virtual(drive_run(engines, spec)).speculation.early_commits == 0


# ---------------------------------------------------------------- lookahead


def count_new_steps(request: ScoreRequest) -> int:
    return len(request.steps) - request.num_scored


async def test_steps_scored_ahead_need_no_call_of_their_own() -> None:
    calls, ahead = {}, 0
    for on in (False, True):
        engines = engines_with(lookahead=on)
        verifier = RecordingVerifier(engines.verifier)
        engines = replace(engines, verifier=verifier).switch(score_once=False)
        trees = []
        for problem in PROBLEMS:
            run = await drive_run(engines, spec_for(problem, **WIDE))
            trees.append(run.outcome)
            ahead += run.speculation.scored_steps
        calls[on] = len(verifier.asked), sum(map(count_new_steps, verifier.asked)), trees
    assert calls[True][2] == calls[False][2]
    assert calls[False][0] - calls[True][0] == ahead > 0
    assert calls[True][1] > calls[False][1], "steps of paths that were pruned are scored in vain"


async def test_a_drafted_step_that_does_not_fit_the_verifier_is_left_out() -> None:
    refused = 0
    too_long = ContextOverflow("the path to score is too long")
    for problem in PROBLEMS:
        spec, engines = spec_for(problem, **WIDE), engines_with()
        verifier = RecordingVerifier(
            engines.verifier, lambda request: too_long if count_new_steps(request) > 1 else None
        )
        found = await drive_run(replace(engines, verifier=verifier), spec)
        assert found.outcome == (await drive_run(engines_with(lookahead=False), spec)).outcome
        assert found.speculation.scored_steps == 0
        refused += sum(count_new_steps(request) > 1 for request in verifier.asked)
    assert refused > 0


async def test_a_draft_that_ends_its_path_is_not_lost() -> None:
    ended_by_draft = 0
    for problem in PROBLEMS:
        engines = engines_with()
        spec = spec_for(problem, **WIDE)
        tree = (await drive_run(engines, spec)).outcome.tree
        done = [n for n in tree.nodes.values() if n.status is NodeStatus.COMPLETE]
        assert len(done) == spec.n, "completed paths never overshoot n, nor fall short of it"
        texts = [n.segment.token_ids for n in done if n.segment is not None]
        for chunk in get_generator(engines).chunks:
            if chunk.finish is FinishReason.STOP and chunk.speculated_tokens:
                assert chunk.speculated_tokens == len(chunk.token_ids)
                assert chunk.token_ids in texts
                ended_by_draft += 1
    assert ended_by_draft > 0


async def test_standard_work_never_waits_for_speculation() -> None:
    config = replace(AMPLE, max_num_seqs=12)
    specs = [spec_for(problem) for problem in (0, 1, 2)]
    alone = [(await drive_run(engines_with(speculation=False), s)).outcome for s in specs]
    engines = engines_with(config)

    async def later(spec: Request, delay_s: float) -> DrivenRun:
        await asyncio.sleep(delay_s)
        return await drive_run(engines, spec)

    runs = await asyncio.gather(*(later(s, 0.03 * i) for i, s in enumerate(specs)))
    assert [run.outcome for run in runs] == alone
    batches = get_generator(engines).batches
    assert any(b.waiting for b in batches)
    assert any(b.drafts for b in batches)
    assert not any(b.waiting and b.drafts for b in batches)
    await assert_nothing_left(engines)


# ---------------------------------------------------------------- the service


async def test_the_usage_of_a_run_has_its_drafts(serve: Serve) -> None:
    rig = await serve(config=AMPLE)
    usage = (await rig.service.submit(replace(spec_for(0), pair="bundled")).result())["usage"]
    drawn = usage["speculation"]["drawn_tokens"]
    assert usage["speculated_tokens"] == drawn - usage["speculation"]["kept_tokens"]
    assert drawn > 0
