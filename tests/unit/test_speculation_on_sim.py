"""Speculation and lookahead through the driver on simulated engines: what they save, what they
never change, and the defects of the paper's public artifact.

The artifact loses a beam that completes while it still holds speculated steps, lets "completed"
overshoot n, and gives duplicates their parent's speculated steps: a test each.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flashedge.engine.base import ScoreRequest, StepScores
from flashedge.engine.sim.clock import VirtualTimePolicy, run_virtual
from flashedge.engine.sim.pair import Faults
from flashedge.errors import ContextOverflow
from flashedge.runtime.request.spec import RunSpec
from flashedge.scheduling.speculation.slots import FollowUp
from flashedge.search.tree import NodeStatus
from flashedge.types import FinishReason, Granularity, Speculation, TokenIds
from tests.contracts.engine_rig import ask, generate, generate_all, settle
from tests.unit.runtime_rig import assert_nothing_left, both
from tests.unit.service_rig import Rig, ended
from tests.unit.speculation_rig import (
    AMPLE,
    TRACE,
    Told,
    engines_with,
    run_told,
    spec_for,
    watched,
)

PROBLEMS = range(len(TRACE.rows))
WIDE = {"n": 16}


@pytest.fixture
def event_loop_policy() -> VirtualTimePolicy:
    return VirtualTimePolicy()


def told(spec: RunSpec, **engines: Any) -> Told:
    async def main() -> Told:
        return await run_told(engines_with(**engines), spec)

    return run_virtual(main())


# ---------------------------------------------------------------- what it saves


@pytest.mark.parametrize("strategy", ["beam", "dvts", "rebase", "dynamic_branching"])
def test_the_same_tree_in_less_time(strategy: str) -> None:
    off_s = on_s = 0.0
    steps = kept = 0
    for problem in PROBLEMS:
        spec = spec_for(problem, strategy=strategy, **WIDE)
        off, on = told(spec, speculation=False), told(spec, lookahead=False)
        assert on.outcome == off.outcome
        assert off.speculation == Speculation()
        off_s, on_s = off_s + off.seconds, on_s + on.seconds
        steps += sum(node.segment is not None for node in on.outcome.tree.nodes.values())
        kept += on.speculation.kept_steps
        assert 0 < on.speculation.kept_tokens <= on.speculation.drawn_tokens
    assert on_s < 0.97 * off_s
    assert kept >= 0.2 * steps


async def test_the_batch_stays_full_and_never_grows() -> None:
    """Places that finished beams leave are filled, and no more than those."""
    engines = engines_with()
    await run_told(engines, spec_for(0, **WIDE))
    batches = watched(engines).batches
    assert all(b.standard + b.speculative <= 16 for b in batches)
    assert all(b.standard for b in batches), "nothing is drawn when no beam is waited for"
    speculating = [b for b in batches if b.speculative]
    full = sum(b.standard + b.speculative == 16 for b in speculating)
    assert full > 0.5 * len(speculating) > 0
    off = engines_with(speculation=False)
    await run_told(off, spec_for(0, **WIDE))
    assert len(batches) < len(watched(off).batches)


def test_where_steps_are_flat_the_batch_may_grow() -> None:
    """Each of a beam's children has a place then: more head starts, less time, the same tree."""
    seconds = dict.fromkeys((0, 64), 0.0)
    for problem in PROBLEMS:
        spec = spec_for(problem)
        runs = {flat: told(spec, config=replace(AMPLE, flat_batch=flat)) for flat in seconds}
        assert runs[0].outcome == runs[64].outcome
        for flat, run in runs.items():
            seconds[flat] += run.seconds
    assert seconds[64] < 0.97 * seconds[0]


async def test_every_token_drawn_ahead_is_kept_or_wasted() -> None:
    engines = engines_with()
    for problem in PROBLEMS:
        generator = watched(engines)
        generator.given.clear()
        found = (await run_told(engines, spec_for(problem))).speculation
        kept = [c.speculated_tokens for c in generator.given if c.speculated_tokens]
        assert (sum(kept), len(kept)) == (found.kept_tokens, found.kept_steps)
        assert found.wasted_tokens == found.drawn_tokens - found.kept_tokens >= 0
    await assert_nothing_left(engines)


# ---------------------------------------------------------------- lookahead


class CountingVerifier:
    """A verifier that counts its calls and the steps that it was asked to score."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.calls = self.steps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def score(self, request: ScoreRequest) -> StepScores:
        self.calls += 1
        self.steps += len(request.steps) - request.num_scored
        found: StepScores = await self._inner.score(request)
        return found


async def test_steps_scored_ahead_need_no_call_of_their_own() -> None:
    calls, ahead = {}, 0
    for on in (False, True):
        engines = engines_with(lookahead=on)
        verifier: Any = CountingVerifier(engines.verifier)
        engines = replace(engines, verifier=verifier).switch(score_once=False)
        trees = []
        for problem in PROBLEMS:
            run = await run_told(engines, spec_for(problem, **WIDE))
            trees.append(run.outcome)
            ahead += run.speculation.scored_steps
        calls[on] = (verifier.calls, verifier.steps, trees)
    assert calls[True][2] == calls[False][2]
    assert calls[False][0] - calls[True][0] == ahead > 0
    assert calls[True][1] > calls[False][1], "steps of paths that were pruned are scored in vain"


class ShortVerifier(CountingVerifier):
    """Its context holds what is asked for and not a step more."""

    async def score(self, request: ScoreRequest) -> StepScores:
        if len(request.steps) - request.num_scored > 1:
            self.calls += 1
            raise ContextOverflow("the path to score is too long")
        found: StepScores = await self._inner.score(request)
        return found


async def test_a_following_step_that_does_not_fit_the_verifier_is_left_out() -> None:
    refused = 0
    for problem in PROBLEMS:
        spec = spec_for(problem, **WIDE)
        engines = engines_with()
        verifier: Any = ShortVerifier(engines.verifier)
        found = await run_told(replace(engines, verifier=verifier), spec)
        assert found.outcome == (await run_told(engines_with(lookahead=False), spec)).outcome
        assert found.speculation.scored_steps == 0
        refused += verifier.calls
    assert refused > 0


# ---------------------------------------------------------------- the artifact's defects


async def test_a_step_that_ends_its_path_ahead_is_not_lost() -> None:
    """Paths whose last step was drawn whole before it was asked for are among the completed."""
    ended_ahead = 0
    for problem in PROBLEMS:
        engines = engines_with()
        spec = spec_for(problem, **WIDE)
        tree = (await run_told(engines, spec)).outcome.tree
        done = [n for n in tree.nodes.values() if n.status is NodeStatus.COMPLETE]
        assert len(done) == spec.n, "completed paths never overshoot n, nor fall short of it"
        texts = [n.segment.token_ids for n in done if n.segment is not None]
        for chunk in watched(engines).given:
            if chunk.finish is FinishReason.STOP and chunk.speculated_tokens:
                assert chunk.speculated_tokens == len(chunk.token_ids)
                assert chunk.token_ids in texts
                ended_ahead += 1
    assert ended_ahead > 0


def test_duplicates_with_their_siblings_tokens_would_be_another_search() -> None:
    """The paper's truncation, R = 0.85, for comparison: its trees differ, ours never do."""
    differ = 0
    for problem in PROBLEMS:
        spec = spec_for(problem, **WIDE)
        off = told(spec, speculation=False)
        differ += told(spec, truncation=0.85).outcome != off.outcome
        assert told(spec).outcome == off.outcome
    assert differ > 0


# ---------------------------------------------------------------- at once


async def test_standard_work_never_waits_for_speculation() -> None:
    """Two runs in a batch that holds one: where a standard request waits, nothing speculates."""
    config = replace(AMPLE, max_num_seqs=12)
    specs = [spec_for(problem) for problem in (0, 1, 2)]
    alone = [(await run_told(engines_with(speculation=False), s)).outcome for s in specs]
    engines = engines_with(config)

    async def later(spec: RunSpec, delay_s: float) -> Told:
        await asyncio.sleep(delay_s)
        return await run_told(engines, spec)

    runs = await asyncio.gather(*(later(s, 0.03 * i) for i, s in enumerate(specs)))
    assert [run.outcome for run in runs] == alone
    batches = watched(engines).batches
    assert any(b.waiting for b in batches)
    assert any(b.speculative for b in batches)
    assert not any(b.waiting and b.speculative for b in batches)
    await assert_nothing_left(engines)


async def test_short_memory_stops_it_and_changes_nothing() -> None:
    kv_bytes = 260 * AMPLE.shape.kv_bytes_per_token
    config = replace(AMPLE, block_tokens=4, kv_bytes=kv_bytes, max_model_len=256)
    engines = engines_with(config)
    drawn = 0
    for problem in PROBLEMS[:6]:
        spec = spec_for(problem, n=32, max_path_tokens=240)
        off = await run_told(engines_with(speculation=False), spec)
        run = await run_told(engines, spec)
        assert run.outcome == off.outcome
        drawn += run.speculation.drawn_tokens
        await assert_nothing_left(engines)
    assert (await engines.generator.view()).preemptions > 0
    assert drawn > 0
    assert not any(b.waiting and b.speculative for b in watched(engines).batches)


async def test_the_engine_dies_with_drafts_in_it() -> None:
    spec = spec_for(0, **WIDE)
    expected = await run_told(engines_with(speculation=False), spec)
    whole = engines_with()
    await run_told(whole, spec)
    for step in range(5, len(watched(whole).batches), 7):
        engines = engines_with(faults=Faults(die_after_steps=frozenset({step}), restart_s=1.0))
        assert (await run_told(engines, spec)).outcome == expected.outcome
        assert both(engines)[0].health().restarts == 1
        await assert_nothing_left(engines)


async def test_a_request_takes_of_a_draft_what_it_may_have() -> None:
    """It ends by its own limit, not the draft's; what follows it goes on from there."""
    generator, plain = watched(engines_with()), watched(engines_with())
    problem, whole = TRACE.problem(0), Granularity(max_tokens=30, to_end=True)
    path: TokenIds = ()
    for level, limit in enumerate((3, 5, 4, 6)):
        child = ask(generator, problem, seed=1, after=path, max_tokens=limit)
        slow = ask(generator, problem, seed=2 + level, max_tokens=60)
        beams = [
            replace(
                request,
                follow_up=FollowUp(
                    run="r", level=level, seeds=(request.seed,), granularity=whole, potential=1
                ),
            )
            for request in (child, slow)
        ]
        generator.given.clear()
        found, _ = await generate_all(generator, beams)
        assert found.token_ids == (await generate(plain, child)).token_ids
        assert found.finish is FinishReason.STEP_LIMIT
        ahead = sum(chunk.speculated_tokens for chunk in generator.given)
        assert ahead == (limit if level else 0)
        path += found.token_ids
    assert await generator.speculator.end("r") > len(path)
    await settle(generator)


# ---------------------------------------------------------------- the switches


class Plain:
    """A generator that knows no speculation, and is told nothing of it."""

    speculator = None

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.mark.parametrize("knows", [True, False])
async def test_what_a_generator_is_told(knows: bool) -> None:
    engines = engines_with()
    generator: Any = engines.generator if knows else Plain(engines.generator)
    run = await run_told(replace(engines, generator=generator), spec_for(0))
    asked = watched(engines).asked
    assert all((request.follow_up is not None) is knows for request in asked)
    assert (run.speculation.drawn_tokens > 0) is knows
    if knows:
        levels = [r.follow_up.level for r in asked if r.follow_up]
        assert levels == sorted(levels)
        assert {r.follow_up.run for r in asked if r.follow_up} != {""}


@pytest.mark.parametrize(
    ("settings", "baseline", "on"),
    [
        ({}, False, (True, False)),
        ({"scheduling_lookahead": True}, False, (True, True)),
        ({"scheduling_lookahead": True}, True, (False, False)),
        ({"scheduling_speculation": False}, False, (False, False)),
    ],
)
async def test_switched_off_and_the_baseline_has_none(
    tmp_path: Path, settings: dict[str, Any], baseline: bool, on: tuple[bool, bool]
) -> None:
    rig = Rig(tmp_path, config=AMPLE, **settings)
    await rig.service.start()
    run = rig.service.submit(replace(spec_for(0), pair="bundled", baseline=baseline))
    engines = rig.engines_for(run)
    assert (engines.optimizations.speculation, engines.optimizations.lookahead) == on
    assert await ended(run) == "finished"
    usage = (await run.result())["usage"]
    assert (usage["speculation"]["drawn_tokens"] > 0) is on[0]
    assert usage["speculated_tokens"] == (
        usage["speculation"]["drawn_tokens"] - usage["speculation"]["kept_tokens"]
    )
    await rig.service.stop()
