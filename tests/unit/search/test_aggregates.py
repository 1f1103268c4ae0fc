"""Aggregates of step scores."""

from __future__ import annotations

import pytest

from flashedge.errors import RequestError
from flashedge.runtime.request import values
from flashedge.search.aggregates import AGGREGATES, aggregate, score_per_step
from flashedge.search.base import Finish
from flashedge.search.tree import ROOT, Tree
from flashedge.search.voting import choose_answer
from flashedge.types import NodeId


@pytest.mark.parametrize(
    ("how", "score"), [("last", 0.5), ("min", 0.2), ("prod", 0.08), ("mean", 0.5)]
)
def test_aggregate(how: str, score: float) -> None:
    assert aggregate((0.8, 0.2, 0.5), how) == pytest.approx(score)
    assert aggregate((0.7,), how) == pytest.approx(0.7)
    assert aggregate((), how) == 0.0


@pytest.mark.parametrize("how", AGGREGATES)
def test_a_score_per_step_does_not_depend_on_the_number_of_steps(how: str) -> None:
    """So one certainty threshold fits short paths and long ones, whatever the aggregate."""
    assert score_per_step((0.6,) * 3, how) == pytest.approx(0.6)
    assert score_per_step((0.6,) * 12, how) == pytest.approx(0.6)
    assert score_per_step((), how) == 0.0


def test_a_product_per_step_is_the_geometric_mean() -> None:
    assert score_per_step((0.9, 0.4), "prod") == pytest.approx(0.6)
    assert score_per_step((0.9, 0.0), "prod") == 0.0
    assert score_per_step((0.9, 0.4), "min") == 0.4


def test_unknown_aggregate_names_the_known() -> None:
    with pytest.raises(RequestError, match="last, min, prod, mean") as error:
        aggregate((0.5,), "max")
    assert error.value.param == "aggregate"


def test_a_run_may_ask_for_each() -> None:
    assert set(values.AGGREGATES) == set(AGGREGATES)


def finished(*paths: tuple[str | None, float]) -> tuple[Tree, tuple[NodeId, ...]]:
    tree, made = Tree.from_seed(1).expand(ROOT, len(paths))
    for node, (answer, score) in zip(made, paths, strict=True):
        tree = tree.set_scores(node.id, (score,)).set_answers({node.id: answer})
    return tree, tuple(n.id for n in made)


@pytest.mark.parametrize(
    ("by", "answer", "choice"), [("weighted", "8", 3), ("majority", "7", 2), ("best", "9", 5)]
)
def test_choose(by: str, answer: str, choice: int) -> None:
    paths = [("7", 0.1), ("7", 0.2), ("8", 0.6), ("8", 0.6), ("9", 0.7), ("7", 0.2), (None, 1.0)]
    tree, nodes = finished(*paths)
    finish = choose_answer(tree, nodes, how="last", by=by)
    assert (finish.answer, finish.choice) == (answer, choice)
    assert len(finish.votes) == 3


def test_choose_without_an_answer_shows_the_best_path() -> None:
    tree, nodes = finished((None, 0.1), (None, 0.4), (None, 0.4))
    assert choose_answer(tree, nodes, how="last", by="weighted") == Finish(
        choice=NodeId(2), answer=None, votes=()
    )
