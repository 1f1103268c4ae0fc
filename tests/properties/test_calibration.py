"""Calibration on made-up runs: what it may never do, and what it finds where there is a truth."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashedge.certainty import calibration
from flashedge.certainty.calibration import Calibrator, Ending, RunTrace, bound_loss, replay
from flashedge.certainty.measures import ENTROPY, REWARD, Checkpoint
from flashedge.certainty.policies import POLICIES, Rule

CAP = 12


def trace(
    problem: str, certain: Sequence[float], right: Sequence[bool], overhead: int = 0
) -> RunTrace:
    seen = tuple(
        Checkpoint(progress=k, tokens=10 * k, answers=k, measures={ENTROPY: c, REWARD: c / 2})
        for k, c in enumerate(certain, start=1)
    )
    stops = tuple(
        Ending(right=r, tokens=10 * k, overhead=overhead * k) for k, r in enumerate(right, start=1)
    )
    return RunTrace(problem=problem, cap=len(seen), checkpoints=seen, stops=stops, whole=stops[-1])


@st.composite
def traces(draw: st.DrawFn) -> list[RunTrace]:
    made, value = [], st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])
    for i in range(draw(st.integers(1, 12))):
        pairs = draw(st.lists(st.tuples(value, st.booleans()), min_size=1, max_size=CAP))
        certain, right = zip(*pairs, strict=True)
        made.append(trace(f"problem {i}", certain, right, draw(st.integers(0, 3))))
    return made


@given(made=traces(), policy=st.sampled_from(POLICIES), allowed=st.sampled_from([0.01, 0.3, 0.9]))
@settings(max_examples=60, deadline=None)
def test_a_choice_saves_and_keeps_its_bound(
    made: list[RunTrace], policy: str, allowed: float
) -> None:
    calibrator = Calibrator(made, policy, (ENTROPY, REWARD))
    choice = calibrator.choose(allowed)
    found = choice.comparison
    assert found == calibrator.compare(choice.rule)
    if choice.rule is None:
        assert (found.tokens, found.difference) == (found.full_tokens, 0.0)
    else:
        assert choice.rule.policy == policy
        assert found.saved > 0
        assert found.loss_bound <= allowed
        assert found.difference >= -allowed
        assert choice.validated is None or choice.validated.loss_bound <= allowed
        if choice.smaller_cap is not None:
            assert found.tokens < choice.smaller_cap[1].tokens
        ends = [replay(one, choice.rule) for one in made]
        assert found.tokens * len(made) == pytest.approx(sum(e.tokens + e.overhead for e in ends))
    assert (choice.validated is None) == (len(made) == 1)
    if choice.validated is not None:
        assert choice.validated.runs == len(made)  # each run once
    accuracy = [point.accuracy for point in choice.frontier]
    assert [p.tokens for p in choice.frontier] == sorted(p.tokens for p in choice.frontier)
    assert accuracy == sorted(set(accuracy))


@given(made=traces(), losses=st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)))
@settings(max_examples=40, deadline=None)
def test_a_larger_loss_saves_no_less(made: list[RunTrace], losses: tuple[float, float]) -> None:
    calibrator = Calibrator(made, "static", (ENTROPY,))

    def least_tokens(max_loss: float) -> float:
        cap = calibrator.choose(max_loss).smaller_cap
        rule = calibrator.compare(calibrator.find_best(max_loss))
        return rule.tokens if cap is None else min(rule.tokens, cap[1].tokens)

    low, high = map(least_tokens, sorted(losses))
    assert high <= low


def test_a_rule_must_beat_a_smaller_cap() -> None:
    made = [trace(f"p{i}", [0.9] * CAP, [True] * CAP) for i in range(60)]
    choice = Calibrator(made, "every_step", (ENTROPY,)).choose(0.05)
    assert choice.rule is None
    cap, compared = choice.smaller_cap
    assert (cap, compared.tokens, compared.saved) == (1, 10, pytest.approx(11 / 12))
    with pytest.raises(ValueError, match="twice"):
        Calibrator([*made, made[0]], "every_step", (ENTROPY,))


def test_a_run_ends_at_a_smaller_cap() -> None:
    """Which makes no probes."""
    one = trace("p", [0.5] * 4, [True, False, True, True], overhead=3)
    assert calibration.end_at_cap(one, 2) == Ending(right=False, tokens=20)
    assert calibration.end_at_cap(one, 9) == Ending(right=True, tokens=40)
    assert calibration.end_at(one, 3) == one.stops[2]
    assert calibration.end_at(one, 5) is None


@given(made=traces())
@settings(max_examples=40, deadline=None)
def test_the_grid_knows_no_answer(made: list[RunTrace]) -> None:
    def flip(ending: Ending) -> Ending:
        return replace(ending, right=not ending.right)

    flipped = [replace(t, stops=tuple(map(flip, t.stops)), whole=flip(t.whole)) for t in made]
    assert calibration.Grid.build(made, (ENTROPY,)) == calibration.Grid.build(flipped, (ENTROPY,))


def test_it_finds_the_threshold_that_separates() -> None:
    rng = random.Random(5)
    made = []
    for i in range(60):
        sure = i % 2 == 0
        low, high = (0.7, 0.95) if sure else (0.1, 0.5)
        certain = [rng.uniform(low, high) for _ in range(CAP)]
        made.append(trace(f"p{i}", certain, [sure] * (CAP - 1) + [True]))
    choice = Calibrator(made, "static", (ENTROPY,)).choose(0.05)
    (name, least), *_ = choice.rule.thresholds
    assert (choice.rule.detect, name) == (1, ENTROPY)
    first = [one.checkpoints[0].measures[ENTROPY] for one in made]
    assert max(first[1::2]) < least <= min(first[::2])
    assert (choice.comparison.gained, choice.comparison.lost) == (0, 0)
    assert choice.comparison.saved == pytest.approx(0.5 * 11 / 12, abs=0.06)
    assert choice.validated.saved > 0.35
    assert choice.validated.difference > -0.05


def noisy_runs(rng: random.Random, count: int) -> list[RunTrace]:
    def one(name: str) -> RunTrace:
        certain = [rng.random() for _ in range(CAP)]
        return trace(name, certain, [rng.random() < 0.3 + 0.04 * k for k in range(CAP)])

    return [one(f"p{i}") for i in range(count)]


@pytest.mark.parametrize("policy", ["static", "every_step"])
def test_noise_is_not_mistaken_for_gain(policy: str) -> None:
    rng = random.Random(1)
    others = noisy_runs(rng, 1500)
    for _ in range(4):
        choice = Calibrator(noisy_runs(rng, 80), policy, (ENTROPY,)).choose(0.05)
        assert choice.validated is not None
        if rule := choice.rule:
            assert choice.validated.loss_bound <= 0.05
            found = calibration.compare_endings([(replay(t, rule), t.whole) for t in others])
            assert found.difference > -0.05


def test_probes_count_against_what_they_save() -> None:
    rule = Rule(policy="every_step", detect=1, thresholds=((ENTROPY, 1.0),))

    def save(overhead: int) -> float:
        late = [0.0] * 9 + [1.0] * 3
        made = [trace(f"p{i}", late, [True] * CAP, overhead) for i in range(9)]
        return Calibrator(made, "every_step", (ENTROPY,)).compare(rule).saved

    assert save(1) == pytest.approx(1 - (100 + 10) / 120)
    assert save(9) < 0
    unsure = [trace(f"p{i}", [0.0] * CAP, [False] * 11 + [True], overhead=9) for i in range(9)]
    assert Calibrator(unsure, "every_step", (ENTROPY,)).choose(0.5).rule is None


def test_the_interval_is_wide_for_few_runs() -> None:
    right = Ending(right=True, tokens=1)
    few = calibration.compare_endings([(right, right)] * 100)
    assert few.interval == (pytest.approx(-0.0192, abs=1e-3), pytest.approx(0.0192, abs=1e-3))
    assert calibration.compare_endings([(right, right)] * 1000).interval[0] > few.interval[0]


def test_pareto_keeps_what_nothing_beats() -> None:
    points = [(1, 0.2), (2, 0.5), (2, 0.4), (3, 0.5), (4, 0.9)]
    kept = calibration.keep_pareto_front(SimpleNamespace(tokens=t, accuracy=a) for t, a in points)
    assert [(p.tokens, p.accuracy) for p in kept] == [(1, 0.2), (2, 0.5), (4, 0.9)]


def test_the_fewest_problems_that_show_a_loss() -> None:
    assert [calibration.count_needed_problems(loss) for loss in (0.01, 0.05, 0.5)] == [299, 59, 5]
    for loss in (0.005, 0.01, 0.05, 0.2):
        n = calibration.count_needed_problems(loss)
        assert bound_loss(0, 0, n) <= loss < bound_loss(0, 0, n - 1)


def test_known_bounds() -> None:
    assert bound_loss(0, 0, 299) == pytest.approx(1 - 0.05 ** (1 / 299))
    assert bound_loss(1, 0, 100) == pytest.approx(0.0466, abs=1e-4)  # Clopper-Pearson
    assert bound_loss(5, 0, 5) == 1.0
    assert bound_loss(3, 2, 300) < bound_loss(3, 1, 300) < bound_loss(4, 1, 300)
    assert bound_loss(0, 0, 600) < bound_loss(0, 0, 300)
    assert bound_loss(0, 9, 300) >= bound_loss(0, 0, 300)  # gains are no proof against losses
    # Tango's score test: (40 - 20 - 1000 d) / sqrt(1000 (2 q + d (1 - d))) = -1.645
    assert bound_loss(40, 20, 1000) == pytest.approx(0.0330, abs=3e-4)


@pytest.mark.parametrize("gain", [0.0, 0.002, 0.01, 0.05])
@pytest.mark.parametrize(("problems", "loss"), [(299, 0.01), (59, 0.05), (150, 0.05)])
def test_a_rule_that_loses_too_much_passes_in_one_of_twenty_at_most(
    problems: int, loss: float, gain: float
) -> None:
    """The exact chance that the bound falls below the true loss."""
    lose = gain + loss
    same = 1 - lose - gain
    passed = 0.0
    for lost, gained in product(range(60), range(60 if gain else 1)):
        rest = problems - lost - gained
        if rest >= 0 and bound_loss(lost, gained, problems) < loss:
            chance = math.lgamma(problems + 1) + lost * math.log(lose) + rest * math.log(same)
            chance -= sum(math.lgamma(k + 1) for k in (lost, gained, rest))
            chance += gained * math.log(gain) if gained else 0.0
            passed += math.exp(chance)
    assert passed <= 0.0515
