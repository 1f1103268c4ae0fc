"""Percentiles of the last requests."""

from __future__ import annotations

from flashedge.runtime.recent_latency import RECENT, RecentLatency


def test_nothing_is_known_before_the_first_request() -> None:
    assert RecentLatency().describe() == {"requests": 0, "first_token_s": None, "token_s": None}


def test_percentiles_are_times_of_requests() -> None:
    recent = RecentLatency()
    for number in range(100, 0, -1):
        recent.note(float(number), None if number == 1 else number / 1000)
    found = recent.describe()
    assert found["first_token_s"] == {"p50": 50.0, "p90": 90.0, "p99": 99.0}
    assert found["token_s"] == {"p50": 0.051, "p90": 0.091, "p99": 0.1}


def test_old_requests_are_forgotten() -> None:
    recent = RecentLatency()
    for first_s in (9.0, *[1.0] * RECENT):
        recent.note(first_s, None)
    found = recent.describe()
    assert (found["requests"], found["first_token_s"]["p99"]) == (RECENT, 1.0)
