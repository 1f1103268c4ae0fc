"""Figures of a load, computed by hand."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flashedge.errors import ConfigError, StoreError
from flashedge.scheduling.programs.program import Kind
from scripts.bench.scheduling.program_study import find_highest_rate
from scripts.bench.scheduling.study import compare_paired, estimate_mean
from scripts.lab.benchmark.load.report import build_report
from scripts.lab.benchmark.load.timings import (
    End,
    ProgramRecord,
    Slo,
    Timings,
    average_by_client,
    compute_attainment,
    compute_jain,
    compute_order_quality,
    compute_throughput,
    find_least_scale,
    list_fairness_curve,
    list_needed_scales,
    list_scale_curve,
    read_factors,
    summarize_values,
)
from tests.lab.load_rig import build_record

RECORDS = [
    build_record(0, arrived_s=0.0, wait_s=1.0, first_token_s=2.0, latency_s=4.0, output_tokens=2),
    build_record(1, arrived_s=1.0, first_token_s=0.5, latency_s=2.0, output_tokens=4, client="b"),
    build_record(2, arrived_s=2.0, wait_s=6.0, first_token_s=7.0, latency_s=8.0, output_tokens=8),
    build_record(3, end=End.FAILED, latency_s=None, output_tokens=None, error="it broke"),
    build_record(4, output_tokens=0),
]


def test_times_of_finished_programs_with_output() -> None:
    assert [ProgramRecord.from_json(record.to_json()) for record in RECORDS] == RECORDS
    timings = Timings.of_records(RECORDS)
    assert len(timings) == 3
    assert timings.per_token_s.tolist() == [2.0, 0.5, 1.0]
    assert timings.ttft_s.tolist() == [2.0, 0.5, 7.0]
    assert timings.wait_s.tolist() == [1.0, 0.0, 6.0]
    assert timings.latency_s.tolist() == [4.0, 2.0, 8.0]
    assert compute_throughput(timings) == (3 / 10, 14 / 10)
    # starts at 1, 1, 8; lengths 2, 4, 8
    assert compute_order_quality(timings) == pytest.approx(2 / math.sqrt(2 * 3))
    found = summarize_values(np.arange(101.0))
    assert found == {"mean": 50.0, "p50": 50.0, "p90": 90.0, "p99": 99.0, "max": 100.0}
    assert summarize_values(np.zeros(0)) is None


def test_fairness() -> None:
    shares = [3.0, 3.0, 3.0], [1.0, 0.0, 0.0, 0.0], [1.0, 2.0]
    assert list(map(compute_jain, shares)) == pytest.approx([1.0, 0.25, 9 / 10])
    assert math.isnan(compute_jain([]))
    timings = Timings.of_records(RECORDS)
    curve = dict(list_fairness_curve(timings))
    assert (len(curve), curve[0.5], curve[0.75], curve[1.0]) == (20, 1.0, 1.5, 2.0)
    assert list_fairness_curve(Timings.of_records([])) == []
    assert average_by_client(RECORDS) == {"a": 1.5, "b": 0.5}


def test_paired_ratios_over_seeds() -> None:
    ours, theirs = {0: 1.0, 1: 2.0, 2: 4.0}, {0: 2.0, 1: 4.0, 2: 8.0, 3: 9.0}
    found = compare_paired(ours, theirs)
    spread = estimate_mean({0: 1.0, 1: 3.0})
    assert spread.value == 2.0
    assert 1.0 <= spread.low <= spread.value <= spread.high <= 3.0
    assert found.to_json() == {"value": 2.0, "low": 2.0, "high": 2.0, "seeds": 3}


def test_the_report_has_all_figures() -> None:
    slo = Slo(base_s={Kind.SEARCH: 2.0})  # all deadlines are 4 s, by unknown difficulty
    report = build_report(RECORDS, slo, {("p", None): False})
    assert (report["programs"], report["finished"], report["failed"]) == (5, 4, 1)
    assert report["attainment"] == pytest.approx(3 / 5)
    assert report["goodput_per_s"] == pytest.approx(0.3 * 3 / 4)
    assert report["per_token_s"]["mean"] == pytest.approx(3.5 / 3)
    assert report["wait_s"]["max"] == 6.0
    assert report["by_client"] == {"a": 1.5, "b": 0.5}
    assert report["jain_of_clients"] == pytest.approx(4 / (2 * 2.5))
    named = [report[name] for name in ("errors", "accuracy", "least_scale")]
    assert named == [{"it broke": 1}, 0.0, None]
    assert report["slo"]["known_difficulties"] == 0
    assert set(report["by_kind"]) == {"search"}
    empty = build_report([], slo)
    assert empty["per_token_s"] is empty["goodput_per_s"] is None


# ---------------------------------------------------------------- deadlines


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


def test_a_deadline_is_scale_times_difficulty_times_base() -> None:
    slo = Slo(base_s={Kind.SEARCH: 30.0}, factors={"hard": 3.0})
    records = [build_record(problem=problem, latency_s=45.0) for problem in ("hard", "new")]
    assert list_needed_scales(records, slo) == [45 / (3 * 30), 45 / (2 * 30)]


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
    found = [find_highest_rate(some) for some in (points, points[:2], points[2:], [])]
    assert found == pytest.approx([3.0, 2.0, 0.0, 0.0])
