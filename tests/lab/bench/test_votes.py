"""What a vote that stops early costs, on answers whose outcome can be counted by hand."""

from __future__ import annotations

import pytest

from flashedge.runtime.request.early_exit import ExitOptions, build_exit_rule
from scripts.bench.certainty.votes import judge, make_vote, parse_curve, time_group

LENS = [10, 20, 30, 40, 50, 60, 70, 80]
FLAT = parse_curve("1:1,8:1")


def test_a_group_takes_as_long_as_its_longest_path() -> None:
    assert time_group((30, 10), FLAT) == pytest.approx(0.030)
    assert time_group((30, 10), parse_curve("1:1,2:3")) == pytest.approx((10 * 3 + 20 * 1) / 1e3)
    assert parse_curve("1:1,3:5,5:6")(2) == 3
    assert parse_curve("1:1,3:5")(9) == 5


def test_a_vote_stops_by_its_counts() -> None:
    """Four of four agree in the first problem; in the second they do not, and eight are drawn."""
    boxed = [f"\\boxed{{{answer}}}" for answer in ("7", "7.0", "7", "7", "8", "8", "8", "8")]
    settled = make_vote({"answer": "7", "texts": boxed, "lens": LENS}, "a")
    mixed = [boxed[i] for i in (0, 4, 1, 5, 6, 7, 2, 3)]
    open_ = make_vote({"answer": "8", "texts": mixed, "lens": LENS}, "b")
    policy = build_exit_rule(ExitOptions(), "self_consistency").build_policy()
    assert (settled.list_asks(policy), open_.list_asks(policy)) == ([0, 4], [0, 4, 8])
    row = judge("", policy, [settled, open_], FLAT)
    found = row.comparison
    assert (found.tokens, found.full_tokens) == ((100 + 360) / 2, 360)
    assert row.time == pytest.approx((40 + 40 + 80) / (80 + 80))
    assert (found.accuracy, found.full_accuracy) == (0.5, 0.5), "of equals the earlier answer"
