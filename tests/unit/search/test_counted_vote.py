"""Votes that are counted after every path: what they begin, take and cancel."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashedge.certainty.measures import count_wanted
from flashedge.certainty.policies import GiveUp, Policy, Rule
from flashedge.errors import RequestError
from flashedge.search.base import Cancel, Cluster, Finish, Score
from flashedge.search.catalog import make_search
from flashedge.search.strategies.counted_vote import CountedBestOfN, CountedSelfConsistency
from flashedge.search.tree import ROOT, NodeStatus, Tree
from flashedge.types import FinishReason, Granularity, Limits, NodeId, Segment
from tests.support.search_rig import LIMITS, PROBLEM, Run, World, drive, make_segment

Paths = Sequence[tuple[str, int]]
LEAD = Rule(policy="lead", detect=4, thresholds=(("lead", 0.955),))


@dataclass(frozen=True)
class Script(World):
    paths: Paths = ()

    def segment(self, tree: Tree, node: NodeId, bound: Granularity) -> Segment:
        answer, length = self.paths[tree[node].index]
        text = f"\\boxed{{{answer}}}" if answer else "none"
        return make_segment(text, tokens=(7,) * length, finish=FinishReason.STOP)


def simulate(paths: Paths, n: int, lead: Rule) -> tuple[set[int], int]:
    """The twin: the counted paths, and how many began, in a batch that gives each path a token a
    step."""
    ends = {i: paths[i][1] for i in range(min(n, lead.detect))}
    counted: set[int] = set()
    begun = len(ends)
    while ends:
        path = min(ends, key=lambda i: (ends[i], i))
        clock = ends.pop(path)
        counted.add(path)
        answers = [paths[i][0] or None for i in sorted(counted)]
        wanted = count_wanted(answers, n, lead.least) if any(answers) else n
        if len(counted) == n or not wanted:
            break
        for i in range(begun, min(n, begun + wanted - len(ends))):
            ends[i] = clock + paths[i][1]
            begun += 1
    return counted, begun


def vote(
    paths: Paths, n: int = 8, kind: Any = CountedSelfConsistency, lead: Policy = LEAD, **told: Any
) -> Run:
    return drive(kind(n=n, policy=lead), world=Script(paths=paths), **told)


AGREEING = [("5", 9), ("5", 3), ("4", 30), ("5", 6)]


def test_those_that_agree_first_end_the_vote() -> None:
    run = vote(AGREEING)
    assert (run.end.answer, run.end.cut_by) == ("5", "certainty")
    slow = run.tree[NodeId(3)]
    assert (slow.status, slow.segment) == (NodeStatus.CANCELLED, None)
    assert Cancel(nodes=(slow.id,)) in run.commands
    assert run.tree.committed_tokens == 18
    seen = [(c.progress, c.tokens, round(c.measures["lead"], 2)) for c in run.states[-1].history]
    assert seen == [(1, 3, 0.83), (2, 9, 0.95), (3, 18, 0.99)]


def test_a_tie_goes_to_the_earlier_path_however_long_it_is() -> None:
    assert vote([("5", 30), ("4", 3), ("4", 30), ("5", 4)], n=4).end.answer == "5"


def test_only_counted_paths_are_scored() -> None:
    run = vote(AGREEING, kind=CountedBestOfN)
    (score,) = [c for c in run.commands if isinstance(c, Score)]
    assert (score.nodes, run.tree[NodeId(3)].scores) == ((1, 2, 4), None)
    assert run.end.votes[0].weight > 0


def test_a_vote_that_is_cut_is_not_scored_any_more() -> None:
    paths = [("5", 9), ("4", 3), ("4", 30), ("5", 6)]
    for moment in range(1, 6):
        run = vote(paths, n=4, kind=CountedBestOfN, stop_after=moment)
        assert not [c for c in run.commands if isinstance(c, Score)]


def test_a_vote_that_is_cut_while_it_groups_its_answers_is_not_scored() -> None:
    search = CountedBestOfN(n=1, policy=LEAD)
    world = Script(paths=[("5", 9)])
    state, commands = search.start(PROBLEM, 5, LIMITS)
    (generated,) = world.results(state.tree, commands)
    state, commands = search.tell(state, generated)
    assert commands == (Cluster(nodes=(NodeId(1),)),)
    state, commands = search.conclude(state)
    (clustered,) = world.results(state.tree, commands)
    _, commands = search.tell(state, clustered)
    assert isinstance(commands[-1], Finish)


def test_a_budget_ends_the_vote() -> None:
    limits = Limits(max_path_tokens=40, token_budget=12)
    run = vote([(str(i), 5) for i in range(8)], limits=limits)
    assert (run.end.cut_by, run.tree.committed_tokens) == ("budget", 15)


def test_a_vote_without_answers_is_given_up() -> None:
    policy = GiveUp(policy=LEAD, after=3, below=0.3, measure="entropy")
    run = vote([("", 5)] * 8, lead=policy)
    assert (run.end.answer, run.end.cut_by) == (None, "non_convergence")
    assert sum(n.status is NodeStatus.COMPLETE for n in run.tree.nodes.values()) == 3


paths = st.lists(
    st.tuples(st.sampled_from(["5", "4", "3", ""]), st.integers(1, 12)), min_size=12, max_size=12
)


@given(
    paths=paths,
    n=st.integers(1, 12),
    detect=st.integers(1, 6),
    least=st.floats(0.5, 1.0),
    order=st.integers(0, 1000),
    kind=st.sampled_from([CountedSelfConsistency, CountedBestOfN]),
)
@settings(max_examples=150, deadline=None)
def test_the_tree_is_that_of_a_batch_in_step(
    paths: list[tuple[str, int]], n: int, detect: int, least: float, order: int, kind: Any
) -> None:
    lead = Rule(policy="lead", detect=detect, thresholds=(("lead", least),))
    run = vote(paths, n, kind, lead, order=Random(order))
    counted, begun = simulate(paths, n, lead)
    children = run.tree.children(ROOT)
    assert {c.index for c in children if c.status is NodeStatus.COMPLETE} == counted
    assert len(children) == begun
    assert {c.status for c in children} <= {NodeStatus.COMPLETE, NodeStatus.CANCELLED}
    assert isinstance(run.commands[-1], Finish)


def test_other_strategies_have_no_lead() -> None:
    with pytest.raises(RequestError, match="'beam' can't stop by the lead of a vote"):
        make_search("beam", n=4, policy=LEAD)
