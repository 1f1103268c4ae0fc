"""Deadlines by difficulty, and how many programs meet them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from flashedge.errors import ConfigError, StoreError
from flashedge.scheduling.programs.program import Kind
from scripts.bench.scheduling.program_study import find_highest_rate
from scripts.lab.benchmark.load.timings import (
    End,
    Slo,
    compute_attainment,
    find_least_scale,
    list_needed_scales,
    list_scale_curve,
    read_factors,
)
from tests.lab.load_rig import build_record


def test_difficulty_is_what_trial_runs_say(tmp_path: Path) -> None:
    trials, given = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    trials.write_text(
        '{"settings": {"n": 4}}\n{"id": 1, "correct": true}\n{"id": 2, "correct": true}\n'
        '{"id": 2, "correct": false}\n{"id": 3, "correct": false}\n{"id": 4, "correct": null}\n'
        '{"id": 5, "correct": false}\n'
    )
    given.write_text('{"id": 3, "factor": 1.5}\n\n{"id": "x", "factor": 2}\n')
    assert read_factors([trials, given]) == {1: 1.0, 2: 2.0, 3: 1.5, 5: 3.0, "x": 2.0}
    for text, said in (
        ("[]\n", "line 1: not an object"),
        ('{"correct": true}\n', "id is missing"),
        ('{"id": 1, "factor": 0}\n', "factor is 0"),
    ):
        given.write_text(text)
        with pytest.raises(ConfigError, match=said):
            read_factors([given])
    with pytest.raises(StoreError, match="can't read"):
        read_factors([tmp_path / "none"])


def test_attainment_counts_refused_programs_as_late() -> None:
    slo = Slo(base_s={Kind.SEARCH: 1.0}, scale=1.0, factors={"easy": 1.0})
    records = [
        build_record(0, problem="easy", latency_s=0.5),
        build_record(1, problem="easy", latency_s=2.0),
        build_record(2, latency_s=2.0),  # of unknown difficulty: its deadline is 2 s
        build_record(3, end=End.REFUSED, latency_s=None, wait_s=None, output_tokens=None),
        build_record(4, kind=Kind.CHAT, latency_s=99.0),  # without a deadline
    ]
    needed = list_needed_scales(records, slo)
    assert needed == [0.5, 2.0, 1.0, math.inf]
    assert needed == list_needed_scales(records, replace(slo, scale=7.0))
    assert compute_attainment(needed, 1.0) == 0.5
    assert compute_attainment([], 1.0) is None
    curve = dict(list_scale_curve(needed))
    assert (curve[0.35], curve[0.5], curve[1.0], curve[2.0]) == (0, 0.25, 0.5, 0.75)
    assert find_least_scale(needed) == math.inf
    assert find_least_scale([0.1] * 9 + [5.0]) == 0.1  # 90 % of ten are nine
    assert math.isnan(find_least_scale([]))


def test_the_highest_rate_that_holds_the_target() -> None:
    points = [(1.0, 1.0), (2.0, 0.95), (4.0, 0.85), (8.0, 0.1)]
    assert find_highest_rate(points) == pytest.approx(3.0)
    assert find_highest_rate(points[:2]) == 2.0
    assert find_highest_rate(points[2:]) == 0.0
    assert find_highest_rate([]) == 0.0
