"""What a vote that stops early costs, on answers whose outcome can be counted by hand."""

import pytest

from flashedge.certainty.policies import Rule
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
    """In the first problem three agree when the fourth has 30 tokens. In the second, 7 and 8 come
    in turns: two paths begin at 20 and two at 40, and 8 has four of six at 80."""
    boxed = [f"\\boxed{{{answer}}}" for answer in ("7", "7.0", "7", "7", "8", "8", "8", "8")]
    settled = make_vote({"answer": "7", "texts": boxed, "lens": LENS}, "a")
    mixed = [boxed[i] for i in (0, 4, 1, 5, 6, 7, 2, 3)]
    open_ = make_vote({"answer": "8", "texts": mixed, "lens": LENS}, "b")
    policy = build_exit_rule(ExitOptions(), "self_consistency")
    row = judge("", policy, [settled, open_], FLAT)
    found = row.comparison
    first, second = 10 + 20 + 30 + 30, 10 + 20 + 30 + 40 + 50 + 60 + 40 + 40
    assert (found.tokens, found.full_tokens) == ((first + second) / 2, 360)
    assert row.time == pytest.approx((30 + 80) / (80 + 80))
    assert (found.accuracy, found.full_accuracy) == (1.0, 0.5), "the whole vote ends level"


def test_a_rule_that_asks_in_groups_draws_them_one_after_the_other() -> None:
    boxed = [f"\\boxed{{{answer}}}" for answer in "77778888"]
    vote = make_vote({"answer": "7", "texts": boxed, "lens": LENS}, "a")
    static = Rule(policy="static", detect=4, thresholds=(("entropy", 0.9),))
    assert vote.list_asks(static) == [0, 4]
    unsure = Rule(policy="static", detect=5, thresholds=(("entropy", 0.9),))
    assert vote.list_asks(unsure) == [0, 5, 8]
    row = judge("", unsure, [vote], FLAT)
    assert row.time == pytest.approx((50 + 80) / 80)
