"""Figures of a load, computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flashedge.scheduling.programs.program import Kind
from scripts.bench.scheduling.study import compare_paired, estimate_mean
from scripts.lab.benchmark.load.report import build_report
from scripts.lab.benchmark.load.timings import (
    End,
    ProgramRecord,
    Slo,
    Timings,
    average_by_client,
    compute_jain,
    compute_order_quality,
    compute_throughput,
    list_fairness_curve,
    summarize_values,
)
from tests.lab.load_rig import build_record

RECORDS = [
    build_record(0, arrived_s=0.0, wait_s=1.0, first_token_s=2.0, latency_s=4.0, output_tokens=2),
    build_record(
        1, arrived_s=1.0, wait_s=0.0, first_token_s=0.5, latency_s=2.0, output_tokens=4, client="b"
    ),
    build_record(2, arrived_s=2.0, wait_s=6.0, first_token_s=7.0, latency_s=8.0, output_tokens=8),
    build_record(3, end=End.FAILED, latency_s=None, output_tokens=None, error="it broke"),
    build_record(4, output_tokens=0),
]


def test_times_of_finished_programs_with_output() -> None:
    timings = Timings.of_records(RECORDS)
    assert len(timings) == 3
    assert timings.per_token_s.tolist() == [2.0, 0.5, 1.0]
    assert timings.ttft_s.tolist() == [2.0, 0.5, 7.0]
    assert timings.wait_s.tolist() == [1.0, 0.0, 6.0]
    assert timings.latency_s.tolist() == [4.0, 2.0, 8.0]
    assert compute_throughput(timings) == (3 / 10, 14 / 10)


def test_percentiles() -> None:
    found = summarize_values(np.arange(101.0))
    assert found == {"mean": 50.0, "p50": 50.0, "p90": 90.0, "p99": 99.0, "max": 100.0}
    assert summarize_values(np.zeros(0)) is None


def test_order_of_starts_against_lengths() -> None:
    timings = Timings.of_records(RECORDS)  # starts at 1, 1, 8; lengths 2, 4, 8
    assert compute_order_quality(timings) == pytest.approx(2 / math.sqrt(2 * 3))


def test_fairness() -> None:
    assert compute_jain([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert compute_jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert compute_jain([1.0, 2.0]) == pytest.approx(9 / 10)
    assert math.isnan(compute_jain([]))
    timings = Timings.of_records(RECORDS)
    curve = dict(list_fairness_curve(timings))
    assert (len(curve), curve[0.5], curve[0.75], curve[1.0]) == (20, 1.0, 1.5, 2.0)
    assert list_fairness_curve(Timings.of_records([])) == []
    assert average_by_client(RECORDS) == {"a": 1.5, "b": 0.5}


def test_paired_ratios_over_seeds() -> None:
    ours, theirs = {0: 1.0, 1: 2.0, 2: 4.0}, {0: 2.0, 1: 4.0, 2: 8.0, 3: 9.0}
    found = compare_paired(ours, theirs)
    assert (found.value, found.low, found.high, found.seeds) == (2.0, 2.0, 2.0, 3)
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
    assert report["errors"] == {"it broke": 1}
    assert report["accuracy"] == 0.0
    assert report["least_scale"] is None
    assert report["slo"]["known_difficulties"] == 0
    assert set(report["by_kind"]) == {"search"}
    empty = build_report([], slo)
    assert empty["per_token_s"] is None
    assert empty["goodput_per_s"] is None


def test_records_survive_the_journal() -> None:
    for record in RECORDS:
        assert ProgramRecord.from_json(record.to_json()) == record
