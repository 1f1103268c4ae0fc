"""DeepConf: what it draws, which paths it ends, and which of them have a vote."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from flashedge.certainty.measures import CONSENSUS, LEAD
from flashedge.certainty.policies import Rule
from flashedge.errors import RequestError
from flashedge.runtime.request.early_exit import ExitOptions, build_exit_rule, build_paper_rule
from flashedge.search.base import Expand
from flashedge.search.catalog import make_search
from flashedge.search.strategies.deepconf import DeepConf
from flashedge.search.tree import Tree
from flashedge.types import FinishReason, Granularity, NodeId, Segment
from tests.support.search_rig import Run, World, drive, end_unsure, make_segment

Paths = Sequence[tuple[str, Sequence[float]]]
AGREED = build_paper_rule("deepconf")


@dataclass(frozen=True)
class Script(World):
    """paths: the answer of each, and how sure the model is of its tokens."""

    paths: Paths = ()

    def segment(self, tree: Tree, node: NodeId, bound: Granularity) -> Segment:
        answer, confidences = self.paths[tree[node].index]
        text, tokens = f"\\boxed{{{answer}}}" if answer else "none", (7,) * len(confidences)
        segment = make_segment(text, tokens=tokens, finish=FinishReason.STOP)
        assert bound.confidence_rule is not None, "each path's confidence is asked for"
        ended = end_unsure(segment, bound.confidence_rule, tuple(confidences))
        is_cut = ended.finish is FinishReason.UNSURE
        return replace(ended, text="none", steps=("none",)) if is_cut else ended


def vote(paths: Paths, **options: Any) -> Run:
    return drive(DeepConf(n=len(paths), window=2, **options), world=Script(paths=paths))


SURE, UNSURE = [9.0] * 6, [9.0, 9.0, 2.0, 2.0, 9.0, 9.0]
MIXED = [("5", SURE), ("4", UNSURE), ("5", UNSURE), ("4", [8.0] * 6)]


def test_the_warm_up_is_whole_and_sets_the_threshold_of_the_others() -> None:
    run = vote(MIXED, warm_up=1, keep=0.9)
    assert [len(c.children) for c in run.commands if isinstance(c, Expand)] == [1, 3]
    rules = [c.granularity.confidence_rule for c in run.commands if isinstance(c, Expand)]
    assert [rule.least for rule in rules] == [0.0, 9.0]
    lengths = [run.tree[NodeId(i)].num_tokens for i in (1, 2, 3, 4)]
    assert lengths == [6, 3, 3, 2], "each ends with its first window below 9"
    assert [run.tree[NodeId(i)].confidence for i in (1, 2, 3, 4)] == [9, 5.5, 5.5, 8]
    assert (run.end.answer, [v.count for v in run.end.votes]) == ("5", [1])


def test_paths_below_the_threshold_have_no_vote_though_they_are_whole() -> None:
    """Offline, the threshold is that of all paths: half of them are as sure as 5."""
    paths = [("4", UNSURE), ("4", UNSURE), ("4", UNSURE), ("5", SURE), ("5", [8.0] * 6)]
    assert vote(paths, stops=False, keep=1.0, selection="majority").end.answer == "4"
    run = vote(paths, stops=False, keep=0.25)
    assert [len(c.children) for c in run.commands if isinstance(c, Expand)] == [5]
    assert (run.end.answer, run.end.votes[0].weight) == ("5", 17.0)
    assert run.end.choice == 4, "the surest path is shown"


def test_where_no_sure_path_has_an_answer_all_have_a_vote() -> None:
    run = vote([("", SURE), ("4", UNSURE), ("", SURE)], stops=False, keep=0.5)
    assert run.end.answer == "4"


def test_other_means_weigh_paths_and_end_none() -> None:
    run = vote(MIXED, by="tail", warm_up=1)
    assert {node.num_tokens for node in run.tree.children(NodeId(0))} == {6}
    assert [run.tree[NodeId(i)].confidence for i in (1, 2, 3, 4)] == [9, 9, 9, 8]


def test_paths_are_drawn_until_their_answers_agree() -> None:
    """After the warm-up of 2, and then after each: 9 of 17 of the weights are below 95 %."""
    paths = [("5", SURE), ("4", [8.5] * 6), *[("5", SURE)] * 60]
    run = vote(paths, warm_up=2, keep=1.0, policy=AGREED)
    history = run.states[-1].history
    assert [c.progress for c in history] == list(range(2, len(history) + 2))
    shares = [c.measures[CONSENSUS] for c in history]
    assert shares[:2] == pytest.approx([9 / 17.5, 18 / 26.5])
    assert shares[-2] < 0.95 <= shares[-1] == history[-1].certainty
    assert run.end.cut_by == "certainty"


@pytest.mark.parametrize(
    ("options", "drawn"),
    [
        ({}, 4),
        ({"stops": False}, 4),
        ({"by": "tail"}, 4),
        ({"by": "mean"}, 4),
        ({"by": "bottom"}, 4),
        ({"warm_up": 2}, 2),
        ({"warm_up": 2, "stops": False}, 2),
        ({"warm_up": 1}, 2),
        ({"warm_up": 1, "stops": False}, 2),
    ],
)
def test_by_default_two_answers_or_more_must_agree_after_the_warm_up(
    options: dict[str, Any], drawn: int
) -> None:
    run = vote([("5", SURE)] * 8, policy=AGREED, **options)
    assert (len(run.tree.children(NodeId(0))), run.end.cut_by) == (drawn, "certainty")
    assert run.end.votes[0].count == drawn
    differing = vote([("4", SURE), ("5", SURE)] * 4, policy=AGREED, **options)
    assert (len(differing.tree.children(NodeId(0))), differing.end.cut_by) == (8, None)


@pytest.mark.parametrize("n", [2, 3])
def test_one_voter_is_no_consensus(n: int) -> None:
    """The warm-up is one path. One that disagrees, has no vote or no answer ends nothing."""
    assert len(vote([("5", SURE)] * n, policy=AGREED).tree.children(NodeId(0))) == 2
    for other in (("4", SURE), ("5", UNSURE), ("", SURE)):
        run = vote([("5", SURE), *[other] * (n - 1)], policy=AGREED)
        assert (len(run.tree.children(NodeId(0))), run.end.cut_by) == (n, None)
        assert all(CONSENSUS not in c.measures or c.progress > 1 for c in run.states[-1].history)


def test_the_surest_of_a_small_warm_up_waits_for_another() -> None:
    """0.1 of four paths is the surest, with a threshold of 8.7: the fifth is below it."""
    paths = [("5", SURE), *[("4", [8.0] * 6)] * 3, ("5", [8.5] * 6), ("5", SURE), ("5", SURE)]
    run = vote([*paths, ("5", SURE)], keep=0.1, policy=AGREED)
    assert [c.measures.get(CONSENSUS) for c in run.states[-1].history] == [None, None, 1.0]
    assert (run.end.answer, run.end.votes[0].count) == ("5", 2)


def test_the_consensus_is_that_of_the_answer_that_is_given() -> None:
    """The best path's answer has less weight than the other one."""
    paths = [("5", SURE), ("4", [8.0] * 6), ("4", [8.0] * 6), ("4", [8.0] * 6)]
    run = vote(paths, keep=1.0, stops=False, selection="best")
    assert run.end.answer == "5"
    assert run.states[-1].history[-1].measures == pytest.approx(
        {"entropy": run.states[-1].history[-1].measures["entropy"], CONSENSUS: 9 / 33}
    )


def test_the_warm_up_is_at_most_half_of_the_paths() -> None:
    assert [DeepConf(n=n).count_warm_up() for n in (1, 2, 16, 512)] == [1, 1, 8, 16]


def test_options_are_checked() -> None:
    made = make_search("deepconf", n=8, options={"window": 64, "keep": 0.1, "by": "tail"})
    assert (made.window, made.keep, made.by, made.selection) == (64, 0.1, "tail", "weighted")
    for wrong in ({"keep": 0}, {"by": "most"}, {"window": 0}, {"warm_up": 0}):
        with pytest.raises(RequestError):
            make_search("deepconf", n=8, options=wrong)
    with pytest.raises(RequestError, match="its vote is not by counts of whole answers"):
        make_search("deepconf", n=8, policy=build_exit_rule(ExitOptions(policy=LEAD), "deepconf"))
    assert Rule(policy="every_step", detect=1, thresholds=((CONSENSUS, 0.95),)) == AGREED
