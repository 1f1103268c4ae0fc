"""The exits of MCTS on hand-made trees: each alone, what it keeps, and what it refuses."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from flashedge.errors import RequestError
from flashedge.runtime.request.strategies import build_search
from flashedge.runtime.request.validation import Request
from flashedge.search.base import Cancel
from flashedge.search.mcts.exits import Exits
from flashedge.search.mcts.rollouts import MctsState
from flashedge.search.strategies.mcts import Mcts
from flashedge.search.tree import ROOT, NodeStatus, Tree
from flashedge.types import FinishReason, Granularity, NodeId, Segment
from tests.support.search_rig import PROBLEM, Run, World, drive, make_segment

Indices = tuple[int, ...]
SPEC = Request(problem=PROBLEM, pair="bundled", strategy="mcts")


@dataclass(frozen=True)
class Planned(World):
    """Paths of three steps, no two alike, with scores by the child indices of their nodes."""

    score: Callable[[Indices], float] = lambda path: 0.5

    def segment(self, tree: Tree, node: NodeId, bound: Granularity) -> Segment:
        path = list_indices(tree, node)
        ends = len(path) == 3
        text = f"\\boxed{{{path[0]}}}" if ends else f"step {path}\n\n"
        finish = FinishReason.STOP if ends else FinishReason.BOUNDARY
        return make_segment(text, tokens=(1, 2), finish=finish)

    def scores(self, tree: Tree, node: NodeId) -> tuple[float, ...]:
        return (self.score(list_indices(tree, node)),)


def list_indices(tree: Tree, node: NodeId) -> Indices:
    return tuple(at.index for at in tree.path(node))


def search(parallel: int = 1, n: int = 20, **exits: object) -> Mcts:
    common = {"n": n, "branching": 2, "aggregate": "prod", "selection": "best"}
    return Mcts(**common, parallel=parallel, exits=Exits(**exits))  # type: ignore[arg-type]


def run(mcts: Mcts, score: Callable[[Indices], float]) -> tuple[Run, MctsState]:
    found = drive(mcts, world=Planned(score=score))
    return found, found.states[-1]


@pytest.mark.parametrize("parallel", [1, 3])
def test_a_good_path_ends_the_search(parallel: int) -> None:
    def score(path: Indices) -> float:
        return 0.9 if path[0] else 0.8

    found, state = run(search(parallel, positive_exit=True, accept=0.7), score)
    assert (found.end.cut_by, found.end.unlikely, found.end.answer) == ("reward", False, "1")
    assert len(state.rollouts) < 8
    assert state.best_reward == pytest.approx(0.729)
    found, state = run(search(parallel, positive_exit=True, accept=0.8), score)
    assert (found.end.cut_by, len(state.rollouts)) == (None, 8)


@pytest.mark.parametrize("parallel", [1, 3])
def test_the_search_ends_once_every_leaf_is_futile(parallel: int) -> None:
    found, state = run(search(parallel, negative_exit=True, futile=0.3), lambda path: 0.5)
    assert (found.end.cut_by, found.end.unlikely) == ("futility", True)
    assert found.end.answer is not None, "the first path ran to its end"
    leaves = [n for n in found.tree.nodes.values() if not found.tree.children(n.id)]
    alive = [n for n in leaves if n.status is not NodeStatus.CANCELLED]
    assert all(state.statistics[n.id].reward < 0.3 for n in alive)
    assert len(state.rollouts) < 8


def test_one_viable_leaf_keeps_the_search_going() -> None:
    found, state = run(search(negative_exit=True, futile=0.3), lambda path: 0.9 if path[0] else 0.5)
    assert (found.end.cut_by, len(state.rollouts)) == (None, 8)


@pytest.mark.parametrize(("worth", "cut_by"), [(0.9, "reward"), (0.8, "futility")])
def test_one_threshold_for_both_exits_is_the_papers_rule(worth: float, cut_by: str) -> None:
    both = {"positive_exit": True, "negative_exit": True, "accept": 0.7, "futile": 0.7}
    made = build_search(replace(SPEC, aggregate="prod", selection="best", options=both))
    assert isinstance(made, Mcts)
    found, _ = run(made, lambda path: worth)
    assert (found.end.cut_by, found.end.unlikely) == (cut_by, cut_by == "futility")


@pytest.mark.parametrize("parallel", [1, 4])
def test_futile_rollouts_are_cut_and_count_among_n(parallel: int) -> None:
    def score(path: Indices) -> float:
        return 0.95 if path[0] else (0.94 if len(path) == 1 else 0.2)

    found, state = run(search(parallel, cut_rollouts=True, futile=0.3), score)
    assert state.num_futile > 0
    for node in found.tree.nodes.values():
        if list_indices(found.tree, node.id)[:1] == (0,):
            assert node.depth < 3 or node.status is NodeStatus.CANCELLED
            assert state.statistics[node.id].visits == 0
    assert len(state.rollouts) == 4, "all of branch 1"
    assert (found.end.cut_by, found.end.unlikely) == ("futility", False), "a good path was found"


def test_rollouts_in_flight_are_cancelled_when_they_turn_out_futile() -> None:
    found, state = run(search(4, cut_rollouts=True, futile=0.3), lambda path: 0.5)
    assert (found.end.cut_by, found.end.unlikely) == ("futility", True)
    assert len(state.rollouts) >= 1
    assert any(isinstance(command, Cancel) for command in found.commands)
    assert all(state.statistics[node].in_flight == 0 for node in found.tree.nodes)
    assert state.statistics[ROOT].is_closed or state.num_futile > 0


@pytest.mark.parametrize("switch", ["negative_exit", "cut_rollouts"])
@pytest.mark.parametrize("aggregate", ["last", "mean"])
def test_an_aggregate_that_bounds_nothing_is_refused(switch: str, aggregate: str) -> None:
    with pytest.raises(RequestError, match="only falls as a path grows") as error:
        build_search(replace(SPEC, aggregate=aggregate, options={switch: True}))
    assert error.value.param == "aggregate"
    assert "prod or min" in error.value.line


def test_exits_that_bound_nothing_are_no_matter_for_positive_ones() -> None:
    options = {"positive_exit": True, "accept": 0.5, "parallel": 4, "take": "arrival"}
    made = build_search(replace(SPEC, aggregate="last", options=options))
    assert isinstance(made, Mcts)
    assert (made.parallel, made.take) == (4, "arrival")
    assert (made.exits.accept, made.exits.negative_exit) == (0.5, False)
