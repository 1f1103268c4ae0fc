"""What a vote that stops early costs, on answers whose outcome can be counted by hand."""

import numpy as np
import pytest

from flashedge.certainty.policies import Rule
from flashedge.runtime.request.early_exit import ExitOptions, build_exit_rule
from flashedge.search.strategies.best_of_n import BestOfN
from flashedge.search.strategies.deepconf import DeepConf
from flashedge.search.strategies.probed_cot import ProbedCot
from scripts.bench.certainty.replay import replay
from scripts.bench.certainty.samples import make_vote, shuffle_votes
from scripts.bench.certainty.votes import (
    FEWEST,
    KINDS,
    UNCHOSEN,
    WeighedVote,
    choose,
    count_paths,
    describe,
    draw_smaller,
    find_equal,
    judge,
    judge_kind,
    parse_curve,
    select,
    split,
    tabulate_leads,
    tabulate_signals,
)

LENS = [10, 20, 30, 40, 50, 60, 70, 80]
FLAT = parse_curve("1:1,8:1")


def test_a_step_of_a_batch_is_interpolated() -> None:
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
    row = judge("", count_paths(8, policy), [[settled, open_]], FLAT)
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
    unsure = Rule(policy="static", detect=5, thresholds=(("entropy", 0.9),))
    row = judge("", count_paths(8, unsure), [[vote]], FLAT)
    assert row.seconds[0] == pytest.approx([0.130])
    assert np.isnan(row.lead).all()


def test_a_rule_is_compared_with_as_many_paths_as_are_as_accurate() -> None:
    """One vote is right from the first path on, the other one from the fifth, since of equal counts
    the earlier answer wins."""
    texts = ([rf"\boxed{{{answer}}}" for answer in one] for one in ("77777777", "88777777"))
    votes = [make_vote({"answer": "7", "texts": one, "lens": [10] * 8}, "") for one in texts]
    even = [judge("", draw_smaller(8, n), [votes], FLAT) for n in range(1, 9)]
    assert [one.right.mean() for one in even] == [0.5] * 4 + [1.0] * 4
    three = describe(even[2], even)
    assert (three["difference"][0], three["saved"][0]) == (-50, 62.5)
    assert three["saved_at_equal_accuracy"][0] == -200, "one path is as accurate"
    assert (three["stopped"], three["kept"][0]) == (100, 50)
    sure = Rule(policy="every_step", detect=3, thresholds=(("entropy", 1.0),))
    found = describe(judge("", count_paths(8, sure), [votes], FLAT), even)
    assert (found["accuracy"], found["saved_at_equal_accuracy"][0]) == (100, -10), "3 and 8, not 5"
    accuracies, tokens = np.array([0.4, 0.3, 0.6]), np.array([1.0, 2.0, 3.0])
    assert find_equal(0.5, accuracies, tokens) == 2.5
    assert find_equal(0.9, accuracies, tokens) == 3


def test_samples_in_another_order_are_the_same_samples() -> None:
    boxed = [rf"\boxed{{{answer}}}" for answer in "77788889"]
    vote = make_vote({"answer": "7", "texts": boxed, "lens": LENS}, "a")
    orders = shuffle_votes([vote], 9)
    assert len({frozenset((s.tokens, s.answer) for s in v.samples) for (v,) in orders}) == 1
    assert len({other.samples for (other,) in orders}) > 5
    assert orders == shuffle_votes([vote], 9)


def test_leads_are_told_for_both_ways_to_arrive() -> None:
    """As drawn the first three agree and lose; the other answer's paths are the shorter ones."""
    boxed = [rf"\boxed{{{answer}}}" for answer in "77788888"]
    vote = make_vote({"answer": "7", "texts": boxed, "lens": LENS[::-1]}, "a")
    (row,) = (one for one in tabulate_leads([[vote] * FEWEST]) if one["first"] == one["paths"] == 3)
    assert (row["said"], row["won_as_drawn"], row["won_shortest_first"]) == (99.2, 0, 100)


# ---------------------------------------------------------------- what `score` adds

WRONG, RIGHT = r"\boxed{8}", r"\boxed{7}"
SCORED = {
    "answer": "7",
    "texts": [WRONG, RIGHT, WRONG, RIGHT],
    "lens": [10, 10, 10, 10],
    "scores": [[0.9, 0.1], [0.2, 0.8], [0.9, 0.1], [0.2, 0.7]],
    "confidences": [[9.0] * 10, [12.0] * 10, [9.0] * 3 + [1.0] * 7, [12.0] * 10],
    "probes": [[["8}", 2, 2], ["7}", 2, 2], ["7}", 2, 2], ["7}", 2, 2]]],
    "probe_tokens": 2,
}
VOTE = make_vote(SCORED, "a")


def test_scores_weigh_a_vote() -> None:
    end = replay(BestOfN(n=4), VOTE, FLAT)
    assert (end.answer, end.tokens, end.scored) == ("7", 40, 40)
    assert replay(BestOfN(n=4, selection="majority"), VOTE, FLAT).answer == "7", "a tie, by scores"
    assert replay(BestOfN(n=4, aggregate="prod"), VOTE, FLAT).answer == "7"
    assert replay(BestOfN(n=4, aggregate="mean", selection="best"), VOTE, FLAT).answer == "8"
    assert replay(draw_smaller(4, 4), VOTE, FLAT).answer == "8", "a tie, by its first path"


def test_the_lead_counts_what_the_verifier_says() -> None:
    rule = Rule(policy="lead", detect=4, thresholds=(("lead", 0.6),))
    search = WeighedVote.build(rule, "last", 0.425, VOTE)
    assert search.weights == pytest.approx([0.1 / 0.425, 0.8 / 0.425, 0.1 / 0.425, 0.7 / 0.425])
    assert replay(search, VOTE, FLAT).answer == "7"
    even = WeighedVote.build(rule, "last", 0.5, make_vote({**SCORED, "scores": [[0.5]] * 4}, "b"))
    counted = count_paths(4, rule)
    assert replay(even, VOTE, FLAT) == replay(counted, VOTE, FLAT), "weights of 1 are counts"


def test_deepconf_pays_for_an_unsure_path_up_to_its_end() -> None:
    """The third path's mean of 4 tokens is 9, 9, 9, 1 at its fourth: 7 is below the warm-up's 9."""
    search = DeepConf(n=4, warm_up=2, window=4, keep=1.0)
    end = replay(search, VOTE, FLAT)
    assert (end.answer, end.tokens) == ("7", 34)
    assert replay(DeepConf(n=4, window=4, keep=1.0, stops=False), VOTE, FLAT).tokens == 40


def test_a_probed_chain_pays_for_its_probes() -> None:
    rule = Rule(policy="every_step", detect=1, thresholds=(("consistency", 1.0),))
    end = replay(ProbedCot(probe_tokens=2, window=2, policy=rule), VOTE, FLAT)
    assert (end.answer, end.tokens) == ("7", 8 + 6), "three probes, and a segment beside each"
    whole = replay(ProbedCot(probe_tokens=0), VOTE, FLAT)
    assert (whole.answer, whole.tokens) == ("8", 10)
    assert VOTE.is_right("7.0")
    fewer = make_vote({**SCORED, "probes": [SCORED["probes"][0][:3]]}, "a")
    never = replay(ProbedCot(probe_tokens=2, window=4), fewer, FLAT)
    assert (never.answer, never.tokens) == ("8", 10 + 6), "the fourth probe is missing"


def test_every_kind_is_judged_on_other_problems_than_it_is_chosen_on() -> None:
    """The scores prefer 7, which is right on the first half alone. So what is chosen there is wrong
    on the second half."""
    turned = {**SCORED, "answer": "8"}
    votes = [make_vote(SCORED if name < "d" else turned, name) for name in "abcdef"]
    chosen_on, orders = split(votes, 3)
    assert [vote.name for vote in chosen_on] == ["a", "b", "c"]
    assert [[vote.name for vote in order] for order in orders] == [["d", "e", "f"]] * 3
    for kind in KINDS:
        rows = list(judge_kind(kind, votes, 3, FLAT))
        counts = (kind, 0, 6) if kind in UNCHOSEN else (kind, 3, 3)
        assert {(row["kind"], row["chosen_on"], row["judged_on"]) for row in rows} == {counts}
        words = ("static",) if kind == "thresholds" else ("chosen", "default")
        assert any(word in row["rule"] for row in rows for word in words)
    weighed = next(row for row in judge_kind("scores", votes, 3, FLAT) if "chosen" in row["rule"])
    assert (weighed["rule"], weighed["accuracy"]) == (
        "chosen, most accurate: weighted vote, last",
        0,
    )


def test_problems_without_what_a_kind_needs_are_left_out() -> None:
    whole = make_vote(SCORED, "a")
    for kind in ("scores", "confidences", "probes"):
        rest = SCORED[kind][1:] if kind != "probes" else ()
        bare = make_vote({**SCORED, kind: [(), *rest], "probe_tokens": 0}, "b")
        assert [vote.name for vote in select(kind, [bare, whole, bare])] == ["a"]
        assert [vote.name for vote in select("counts", [bare, whole])] == ["b", "a"]
    signals = {
        row["signal"] for row in tabulate_signals([make_vote({**SCORED, "scores": [()] * 4}, "b")])
    }
    assert "score, last" not in signals
    assert "confidence, mean of 2048" in signals


def test_the_most_accurate_rule_is_chosen_where_few_problems_bound_no_loss() -> None:
    rules = {"majority": draw_smaller(4, 4), "weighted": BestOfN(n=4)}
    whole = judge("", rules["majority"], [[VOTE]], FLAT)
    assert list(choose(rules, whole, [VOTE], FLAT)) == ["chosen, most accurate: weighted"]


def test_signals_are_compared_within_a_problem() -> None:
    """The right answers have the higher last scores, and the higher confidences."""
    easy = make_vote({**SCORED, "texts": [RIGHT] * 4}, "b")
    found = {
        row["signal"]: (row["auc"][0], row["problems"]) for row in tabulate_signals([VOTE, easy])
    }
    assert found["score, last"] == (1, 1), "a problem without wrong answers has no pairs"
    assert found["score, prod"] == (1, 1)
    assert found["score, min"] == (1, 1)
    assert found["confidence, mean of 2048"] == (1, 1)
