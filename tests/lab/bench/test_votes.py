"""What a vote that stops early costs, on answers whose outcome can be counted by hand."""

import numpy as np
import pytest

from flashedge.certainty.policies import Rule
from flashedge.runtime.request.early_exit import ExitOptions, build_exit_rule
from scripts.bench.certainty.votes import (
    FEWEST,
    build_smaller,
    describe,
    find_equal_tokens,
    judge,
    make_vote,
    parse_curve,
    shuffle_votes,
    tabulate_leads,
    time_group,
)

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
    row = judge("", policy, [[settled, open_]], FLAT)
    first, second = 10 + 20 + 30 + 30, 10 + 20 + 30 + 40 + 50 + 60 + 40 + 40
    assert row.tokens.tolist() == [[first, second]]
    assert row.seconds[0] == pytest.approx([0.030, 0.080])
    assert (row.right.tolist(), row.kept.tolist()) == ([[1, 1]], [[1, 0]]), (
        "one whole vote is level"
    )
    assert (row.lead >= 0.955).all()


def test_a_rule_that_asks_in_groups_draws_them_one_after_the_other() -> None:
    boxed = [f"\\boxed{{{answer}}}" for answer in "77778888"]
    vote = make_vote({"answer": "7", "texts": boxed, "lens": LENS}, "a")
    static = Rule(policy="static", detect=4, thresholds=(("entropy", 0.9),))
    assert vote.list_asks(static) == [0, 4]
    unsure = Rule(policy="static", detect=5, thresholds=(("entropy", 0.9),))
    assert vote.list_asks(unsure) == [0, 5, 8]
    row = judge("", unsure, [[vote]], FLAT)
    assert row.seconds[0] == pytest.approx([0.130])
    assert np.isnan(row.lead).all()


def test_a_rule_is_compared_with_as_many_paths_as_are_as_accurate() -> None:
    """One vote is right from the first path on, the other one from the fifth, since of equal counts
    the earlier answer wins."""
    texts = ([rf"\boxed{{{answer}}}" for answer in one] for one in ("77777777", "88777777"))
    votes = [make_vote({"answer": "7", "texts": one, "lens": [10] * 8}, "") for one in texts]
    even = [judge("", build_smaller(n), [votes], FLAT) for n in range(1, 9)]
    assert [one.right.mean() for one in even] == [0.5] * 4 + [1.0] * 4
    three = describe(even[2], even)
    assert (three["difference"][0], three["saved"][0]) == (-50, 62.5)
    assert three["saved_at_equal_accuracy"][0] == -200, "one path is as accurate"
    assert (three["stopped"], three["kept"][0]) == (100, 50)
    sure = Rule(policy="every_step", detect=3, thresholds=(("entropy", 1.0),))
    found = describe(judge("", sure, [votes], FLAT), even)
    assert (found["accuracy"], found["saved_at_equal_accuracy"][0]) == (100, -10), "3 and 8, not 5"
    accuracies, tokens = np.array([0.4, 0.3, 0.6]), np.array([1.0, 2.0, 3.0])
    assert find_equal_tokens(0.5, accuracies, tokens) == 2.5
    assert find_equal_tokens(0.9, accuracies, tokens) == 3


def test_samples_in_another_order_are_the_same_samples() -> None:
    boxed = [rf"\boxed{{{answer}}}" for answer in "77788889"]
    vote = make_vote({"answer": "7", "texts": boxed, "lens": LENS}, "a")
    orders = shuffle_votes([vote], 9)
    assert len({tuple(sorted(zip(v.lens, v.answers, strict=True))) for (v,) in orders}) == 1
    assert len({other.lens for (other,) in orders}) > 5
    assert orders == shuffle_votes([vote], 9)


def test_leads_are_told_for_both_ways_to_arrive() -> None:
    """As drawn the first three agree and lose; the other answer's paths are the shorter ones."""
    boxed = [rf"\boxed{{{answer}}}" for answer in "77788888"]
    vote = make_vote({"answer": "7", "texts": boxed, "lens": LENS[::-1]}, "a")
    (row,) = (one for one in tabulate_leads([[vote] * FEWEST]) if one["first"] == one["paths"] == 3)
    assert (row["said"], row["won_as_drawn"], row["won_shortest_first"]) == (99.2, 0, 100)
