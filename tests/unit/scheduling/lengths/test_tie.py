"""Scores: the paper's formulas, what moves them, and the table that caches their figures."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from flashedge.scheduling.lengths.families.log_t import LogT
from flashedge.scheduling.lengths.families.point import Point
from flashedge.scheduling.lengths.score_table import ScoreTable
from flashedge.scheduling.lengths.tail import (
    TailFigures,
    compute_figures,
    make_certain_figures,
    make_unknown_figures,
)
from flashedge.scheduling.lengths.tie import (
    PROVISIONAL_DECAY,
    Decay,
    combine,
    compute_risk_weight,
    compute_scores,
)

DECAY = Decay(factor=0.5, interval_s=10)
STILL = Decay(factor=1, interval_s=10)


@pytest.mark.parametrize(
    ("waiting", "weight"), [(0, 0.1), (1, 0.1), (2, 0.125), (4, 0.25), (8, 0.5), (900, 0.5)]
)
def test_the_risk_weight_follows_the_queue(waiting: int, weight: float) -> None:
    assert compute_risk_weight(waiting, 16) == weight


def test_a_batch_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        compute_risk_weight(3, 0)


def test_scores_are_the_inflated_expectation_less_the_decay() -> None:
    expected, risk = np.array([100.0, 200.0, 300.0, 50.0]), np.array([400.0, 300.0, 310.0, 60.0])
    waited_s = np.array([0.0, 9.99, 10.0, 25.0])
    scores = compute_scores(expected, risk, waited_s, weight=0.2, decay=DECAY)
    assert scores.tolist() == pytest.approx([180.0, 260.0, 362.0 / 2, 62.0 / 4])
    assert combine(expected, risk, 0.2).tolist() == pytest.approx([180.0, 260.0, 362.0, 62.0])


def test_a_clock_that_is_behind_does_not_raise_a_score() -> None:
    one, late = np.array([100.0]), np.array([-70.0])
    assert compute_scores(one, one, late, weight=0.1, decay=DECAY).tolist() == pytest.approx([110])


@pytest.mark.parametrize(
    ("factor", "interval_s"), [(0, 1), (1.1, 1), (-0.5, 1), (0.5, 0), (0.5, -1), (np.nan, 1)]
)
def test_an_impossible_decay_is_refused(factor: float, interval_s: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        Decay(factor=factor, interval_s=interval_s)


def test_every_request_goes_first_in_the_end() -> None:
    """A long one decays below each short one that is new: no starvation."""
    long, short = np.array([4096.0 * 1.5]), np.array([1.0])
    waits = np.arange(0, 2000, PROVISIONAL_DECAY.interval_s)
    scores = compute_scores(
        np.repeat(long, waits.size), long, waits, weight=0.5, decay=PROVISIONAL_DECAY
    )
    assert (np.diff(scores) < 0).all()
    assert scores[-1] < short[0]


def test_pressure_prefers_the_certain_request() -> None:
    """One has the lower expectation, the other the lighter tail (§4)."""
    risky, sure = compute_figures(LogT(5.0, 0.6), 4096), compute_figures(LogT(5.5, 0.1), 4096)
    assert risky.expected < sure.expected
    table = ScoreTable()
    table.put("risky", risky, 0.0)
    table.put("sure", sure, 0.0)
    assert table.order(0.0, weight=0.0, decay=STILL) == ("risky", "sure")
    assert table.order(0.0, weight=0.5, decay=STILL) == ("sure", "risky")


def test_what_is_not_predicted_goes_last() -> None:
    table = ScoreTable()
    table.put("unknown", make_unknown_figures(1024), 0.0)
    table.put("long", compute_figures(LogT(7.0, 1.0), 1024), 1.0)
    assert table.order(1.0, weight=0.5, decay=STILL) == ("long", "unknown")
    table.put("unknown", compute_figures(Point(20), 1024), 0.0)
    assert table.order(1.0, weight=0.5, decay=STILL) == ("unknown", "long")


def test_equal_scores_go_by_arrival_then_as_they_were_added() -> None:
    table = ScoreTable()
    for key, arrived_s in (("c", 2.0), ("b", 1.0), ("a", 2.0), ("d", 0.5)):
        table.put(key, make_certain_figures(100), arrived_s)
    assert table.order(3.0, weight=0.1, decay=STILL) == ("d", "b", "c", "a")
    table.remove("d")  # moves a row
    assert table.order(3.0, weight=0.1, decay=STILL) == ("b", "c", "a")


def test_an_unknown_key_is_refused_and_changes_nothing() -> None:
    table = ScoreTable()
    table.put("a", make_certain_figures(100), 0.0)
    with pytest.raises(KeyError):
        table.remove("b")
    assert table.keys == ("a",)
    assert "a" in table
    assert "b" not in table


def test_an_empty_table_has_no_scores() -> None:
    table = ScoreTable()
    assert table.score(0.0, weight=0.1, decay=DECAY).shape == (0,)
    assert table.order(0.0, weight=0.1, decay=DECAY) == ()


def test_the_table_equals_a_dictionary_after_any_changes() -> None:
    rng, table = random.Random(0), ScoreTable()
    kept: dict[str, tuple[TailFigures, float]] = {}
    for step in range(3000):
        if kept and rng.random() < 0.45:
            key = rng.choice(sorted(kept))
            table.remove(key)
            del kept[key]
        else:
            key = f"r{rng.randrange(400)}"
            figures = replace(
                make_certain_figures(rng.uniform(1, 900)),
                conditional_value_at_risk=rng.uniform(900, 4000),
            )
            kept[key] = figures, float(step)
            table.put(key, *kept[key])
        assert len(table) == len(kept)
    assert len(kept) > 64  # the arrays have grown
    scores = table.score(4000.0, weight=0.3, decay=DECAY)
    for key, score in zip(table.keys, scores, strict=True):
        figures, arrived_s = kept[key]
        whole = figures.expected + 0.3 * figures.conditional_value_at_risk
        assert score == pytest.approx(whole * 0.5 ** ((4000 - arrived_s) // 10))
    order = table.order(4000.0, weight=0.3, decay=DECAY)
    assert sorted(order) == sorted(kept)
    place = dict(zip(table.keys, scores.tolist(), strict=True))
    assert [place[key] for key in order] == sorted(place.values())
