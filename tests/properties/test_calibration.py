"""Calibration on made-up runs: what it may never do, and what it finds where there is a truth."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashedge.certainty.calibration import Calibrator, Figures, Point, figures, pareto
from flashedge.certainty.candidates import Grid, ended_at, needed, needs
from flashedge.certainty.history import ENTROPY, REWARD, Checkpoint
from flashedge.certainty.policies import Even
from flashedge.certainty.replay import Spent, Trace, replayed
from flashedge.certainty.rules import POLICIES, Rule
from flashedge.certainty.skyline import Skyline

CAP = 12


def trace(
    problem: str, certain: Sequence[float], right: Sequence[bool], overhead: int = 0
) -> Trace:
    """A run with a checkpoint at each progress from 1 on, ten tokens each."""
    checkpoints = tuple(
        Checkpoint(progress=k, tokens=10 * k, answers=k, measures={ENTROPY: c, REWARD: c / 2})
        for k, c in enumerate(certain, start=1)
    )
    stops = tuple(
        Spent(right=r, tokens=10 * k, overhead=overhead * k) for k, r in enumerate(right, start=1)
    )
    return Trace(
        problem=problem, cap=len(checkpoints), checkpoints=checkpoints, stops=stops, whole=stops[-1]
    )


@st.composite
def traces(draw: st.DrawFn) -> list[Trace]:
    count = draw(st.integers(1, 12))
    made = []
    for i in range(count):
        length = draw(st.integers(1, CAP))
        value = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])
        certain = draw(st.lists(value, min_size=length, max_size=length))
        right = draw(st.lists(st.booleans(), min_size=length, max_size=length))
        made.append(trace(f"problem {i % 7}", certain, right, draw(st.integers(0, 3))))
    return made


@given(made=traces())
def test_the_even_policy_replays_the_whole_run(made: list[Trace]) -> None:
    for one in made:
        assert replayed(one, Even()) == one.whole


@given(made=traces(), policy=st.sampled_from(POLICIES), floor=st.sampled_from([0.0, 0.1, 0.5]))
@settings(max_examples=60, deadline=None)
def test_a_choice_saves_and_stays_within_the_floor(
    made: list[Trace], policy: str, floor: float
) -> None:
    calibrator = Calibrator(made, policy, (ENTROPY, REWARD))
    choice = calibrator.choose(floor)
    found = choice.figures
    assert found.difference >= -floor - 1e-9
    assert found == calibrator.figures(choice.rule)
    if choice.rule is None:
        assert (found.tokens, found.difference) == (found.full_tokens, 0.0)
    else:
        assert choice.rule.policy == policy
        assert found.saved > 0
        spent = [replayed(one, choice.rule.made()) for one in made]
        assert found.tokens * len(made) == pytest.approx(sum(s.tokens + s.overhead for s in spent))
    assert (choice.validated is None) == (len({one.problem for one in made}) == 1)
    if choice.validated is not None:
        assert choice.validated.runs == len(made)  # each run once
    tokens = [point.tokens for point in choice.frontier]
    accuracy = [point.accuracy for point in choice.frontier]
    assert tokens == sorted(tokens)
    assert accuracy == sorted(set(accuracy))


@given(made=traces(), floors=st.tuples(st.floats(0, 1), st.floats(0, 1)))
@settings(max_examples=40, deadline=None)
def test_more_leave_saves_no_less(made: list[Trace], floors: tuple[float, float]) -> None:
    calibrator = Calibrator(made, "static", (ENTROPY,))
    low, high = (calibrator.choose(floor).figures.tokens for floor in sorted(floors))
    assert high <= low


@given(made=traces())
@settings(max_examples=40, deadline=None)
def test_the_grid_knows_no_answer(made: list[Trace]) -> None:
    flipped = [
        replace(
            one,
            stops=tuple(replace(s, right=not s.right) for s in one.stops),
            whole=replace(one.whole, right=not one.whole.right),
        )
        for one in made
    ]
    assert Grid.over(made, (ENTROPY,)) == Grid.over(flipped, (ENTROPY,))


@given(made=traces(), detect=st.integers(1, CAP))
def test_the_skyline_covers_its_own_runs(made: list[Trace], detect: int) -> None:
    """A run that the curve was fitted to is never stopped before its answer is right for good."""
    rule = Rule(
        policy="initial_curve",
        detect=detect,
        thresholds=((ENTROPY, 0.0),),
        curve=Skyline.fitted(needs(made, detect, ENTROPY)).steps,
    )
    for one in made:
        if one.whole.right and rule.curve:
            assert replayed(one, rule.made()).right


def test_it_finds_the_threshold_that_separates() -> None:
    """Runs that are sure are right for good, unsure ones turn right at the end."""
    rng = random.Random(5)
    made = []
    for i in range(60):
        sure = i % 2 == 0
        first = [rng.uniform(0.7, 0.95) if sure else rng.uniform(0.1, 0.5) for _ in range(CAP)]
        right = [sure] * (CAP - 1) + [True]
        made.append(trace(f"p{i}", first, right))
    choice = Calibrator(made, "static", (ENTROPY,)).choose(0.0)
    assert choice.rule is not None
    assert choice.rule.detect == 1
    (name, least), *_ = choice.rule.thresholds
    assert name == ENTROPY
    unsure = max(one.checkpoints[0].measures[ENTROPY] for one in made[1::2])
    assert unsure < least <= min(one.checkpoints[0].measures[ENTROPY] for one in made[::2])
    assert (choice.figures.gained, choice.figures.lost) == (0, 0)
    assert choice.figures.saved == pytest.approx(0.5 * 11 / 12, abs=0.06)
    assert choice.validated is not None
    assert choice.validated.saved > 0.35
    assert choice.validated.difference > -0.05


def test_noise_is_not_taken_for_gain() -> None:
    """Certainty that tells nothing: what looks best on some problems is no better on others."""
    rng = random.Random(1)
    made = [
        trace(
            f"p{i}",
            [rng.random() for _ in range(CAP)],
            [rng.random() < 0.4 + 0.02 * k for k in range(CAP)],
        )
        for i in range(80)
    ]
    choice = Calibrator(made, "every_step", (ENTROPY,)).choose(0.0)
    assert choice.validated is not None
    low, high = choice.validated.interval
    assert low < 0
    assert choice.validated.difference <= choice.figures.difference
    assert high - low > 0.05


def test_probes_count_against_what_they_save() -> None:
    """A rule that stops late and probes dearly costs more than the chain alone."""
    cheap = [trace(f"p{i}", [0.0] * 9 + [1.0] * 3, [True] * CAP, overhead=1) for i in range(9)]
    dear = [trace(f"p{i}", [0.0] * 9 + [1.0] * 3, [True] * CAP, overhead=9) for i in range(9)]
    rule = Rule(policy="every_step", detect=1, thresholds=((ENTROPY, 1.0),))
    assert Calibrator(cheap, "every_step", (ENTROPY,)).figures(rule).saved == pytest.approx(
        1 - (100 + 10) / 120
    )
    assert Calibrator(dear, "every_step", (ENTROPY,)).figures(rule).saved < 0
    unsure = [trace(f"p{i}", [0.0] * CAP, [False] * 11 + [True], overhead=9) for i in range(9)]
    assert Calibrator(unsure, "every_step", (ENTROPY,)).choose(0.0).rule is None


def test_a_loss_is_weighed_with_its_noise() -> None:
    def of(gained: int, lost: int, runs: int = 100) -> Figures:
        return replace(ZERO, runs=runs, gained=gained, lost=lost)

    ZERO = figures([(Spent(right=True, tokens=1), Spent(right=True, tokens=1))])
    assert of(0, 0).within(0.0)
    assert not of(0, 1).within(0.0)
    assert not of(1, 1).within(0.0)
    assert of(3, 1).within(0.0)
    assert of(0, 1).within(0.02)
    assert not of(0, 1).within(0.015)
    low, high = of(0, 0).interval
    assert (low, high) == (pytest.approx(-0.0192, abs=1e-3), pytest.approx(0.0192, abs=1e-3))
    assert of(0, 0, runs=1000).interval[0] > low


def test_needed_and_caps() -> None:
    one = trace("p", [0.5] * 4, [True, False, True, True])
    assert needed(one) == 3
    assert needed(trace("p", [0.5], [True])) == 1
    assert needed(trace("p", [0.5, 0.5], [True, False])) is None
    assert ended_at(one, 3) == one.stops[2]
    assert ended_at(one, 5) is None


def test_pareto_keeps_what_nothing_beats() -> None:
    points = [(1, 0.2), (2, 0.5), (2, 0.4), (3, 0.5), (4, 0.9)]
    kept = pareto(Point(tokens=t, accuracy=a) for t, a in points)
    assert [(p.tokens, p.accuracy) for p in kept] == [(1, 0.2), (2, 0.5), (4, 0.9)]
