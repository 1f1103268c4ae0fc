"""How a calibration is described and drawn."""

from __future__ import annotations

import math

from flashedge.certainty.calibration import Calibrator
from flashedge.certainty.history import ENTROPY, Checkpoint
from flashedge.certainty.replay import Ending, RunTrace
from flashedge.certainty.rules import Rule
from flashedge.certainty.skyline import Skyline
from flashedge.cli.calibrate.view import build_frontier, build_skyline, describe_rule

SURE = (("entropy", 0.75),)


def trace(certainty: float, need: int, copy: int = 0, cap: int = 8) -> RunTrace:
    """A run that is right from the progress `need` on."""
    progress_values = range(1, cap + 1)
    stops = tuple(Ending(right=k >= need, tokens=10 * k) for k in progress_values)
    checkpoints = tuple(
        Checkpoint(progress=k, tokens=10 * k, answers=k, measures={ENTROPY: certainty})
        for k in progress_values
    )
    return RunTrace(
        problem=f"{certainty} {need} {copy}",
        cap=cap,
        checkpoints=checkpoints,
        stops=stops,
        whole=stops[-1],
    )


TRACES = [
    trace(certainty, need, copy)
    for certainty, need in ((0.1, 8), (0.1, 3), (0.5, 4), (0.9, 2), (0.95, 1))
    for copy in range(6)
]


def test_the_skyline_is_drawn_as_it_is_read() -> None:
    """Each stretch of the stairs is as high as what runs of its certainty are given."""
    rule = Rule(policy="initial_curve", detect=2, thresholds=SURE)
    series = build_skyline(rule, TRACES, ENTROPY)
    points = [point for point in series["needed"] if not math.isnan(point[0])]
    assert points == [(0.1, 3), (0.1, 8), (0.5, 4), (0.9, 2), (0.95, 1)]
    fitted = Skyline.fit([(at, int(need)) for at, need in points])
    stairs = series["skyline"]
    for (low, height), (high, same) in zip(stairs[::2], stairs[1::2], strict=True):
        assert height == same == fitted.look_up((low + high) / 2, 8) == fitted.look_up(high, 8)


def test_the_frontier_ends_at_full_compute() -> None:
    choice = Calibrator(TRACES, "every_step", (ENTROPY,)).choose(0.1)
    series = build_frontier(choice)
    assert series["even"][-1] == (80, 1.0)
    assert [tokens for tokens, _ in series["even"][:-1]] == [10.0 * k for k in range(1, 8)]
    ((tokens, accuracy),) = series["chosen"]
    assert (accuracy, tokens < 80) == (1.0, True)
    assert (tokens, accuracy) in series["rules"]


def test_rules_in_words() -> None:
    def words(**fields: object) -> str:
        return describe_rule(
            Rule(**{"policy": "static", "detect": 3, "thresholds": SURE, **fields})
        )  # type: ignore[arg-type]

    assert words() == "static from 3 on: entropy at least 0.75"
    both = (*SURE, ("reward", 0.5))
    assert words(thresholds=both).endswith("entropy at least 0.75 and reward at least 0.5")
    assert words(policy="length", max_tokens=1200).endswith("at most 1,200 tokens")
    curve = ((0.1, 8), (0.9, 2))
    assert words(policy="dynamic_curve", curve=curve).endswith(
        "entropy: 8 up to 0.10, 2 up to 0.90"
    )
    assert "none" in describe_rule(None)
