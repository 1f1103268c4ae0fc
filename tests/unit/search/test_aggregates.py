"""Aggregates of step scores."""

from typing import Any

import pytest

from flashedge.errors import RequestError
from flashedge.runtime.request import values
from flashedge.runtime.request.strategies import list_strategies
from flashedge.search.aggregates import AGGREGATES, aggregate, score_per_step
from flashedge.search.base import Finish
from flashedge.search.catalog import WITHOUT_STEP_SCORES, check_judges, make_search
from flashedge.search.tree import ROOT, Tree
from flashedge.search.voting import Search, choose_answer
from flashedge.types import STRATEGIES, Judges, NodeId
from tests.support.search_rig import World, drive


@pytest.mark.parametrize(
    ("how", "score"), [("last", 0.5), ("min", 0.2), ("prod", 0.08), ("mean", 0.5)]
)
def test_aggregate(how: str, score: float) -> None:
    """A score per step does not depend on the number of steps."""
    assert [aggregate((0.8, 0.2, 0.5), how), aggregate((0.7,), how)] == pytest.approx([score, 0.7])
    assert [score_per_step((0.6,) * n, how) for n in (3, 12)] == pytest.approx([0.6, 0.6])
    assert aggregate((), how) == score_per_step((), how) == 0.0


def test_a_product_per_step_is_the_geometric_mean() -> None:
    assert score_per_step((0.9, 0.4), "prod") == pytest.approx(0.6)
    assert score_per_step((0.9, 0.0), "prod") == 0.0
    assert score_per_step((0.9, 0.4), "min") == 0.4


def test_a_run_may_ask_for_each_and_for_no_other() -> None:
    assert set(values.AGGREGATES) == set(AGGREGATES) == {"last", "min", "prod", "mean"}
    with pytest.raises(RequestError, match="last, min, prod, mean") as error:
        aggregate((0.5,), "max")
    assert error.value.param == "aggregate"


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
    found = choose_answer(tree, nodes, how="last", by="weighted")
    assert found == Finish(choice=NodeId(2), answer=None, votes=())


def build(strategy: str, judges: Judges, **fields: Any) -> Search[Any]:
    usual = {"n": 4, "branching": 2, "aggregate": "prod", "selection": "best"}
    usual |= {"max_step_tokens": 8, "max_steps": 6}
    return make_search(strategy, **{**usual, **fields}, judges=judges)


class AnswerWorld(World):
    def scores(self, tree: Tree, node: NodeId) -> tuple[float, ...]:
        return World.scores(self, tree, node)[:1]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_only_strategies_that_judge_whole_answers_take_their_verifier(strategy: str) -> None:
    build(strategy, "steps", n=1)
    if strategy in ("best_of_n", "self_consistency", "deepconf", "probed_cot"):
        build(strategy, "answers", n=1)
        return
    with pytest.raises(RequestError, match=f"'{strategy}' needs scores of single steps") as caught:
        build(strategy, "answers")
    assert "best_of_n or self_consistency" in str(caught.value.hint)
    assert caught.value.param == "strategy"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_without_a_verifier_only_strategies_without_scores_are_left(strategy: str) -> None:
    if strategy in ("self_consistency", "deepconf", "probed_cot"):
        build(strategy, "nothing", n=1)
        return
    with pytest.raises(RequestError, match=f"'{strategy}' needs scores, and the pair has no"):
        build(strategy, "nothing")
    assert strategy not in list_strategies("nothing")


def test_a_program_of_the_users_needs_scores_of_steps() -> None:
    assert "my_way" not in WITHOUT_STEP_SCORES
    with pytest.raises(RequestError, match="my_way"):
        check_judges("my_way", "answers")


def test_a_score_for_each_step_is_refused_where_one_is_expected() -> None:
    with pytest.raises(ValueError, match="1 answer, scores"):
        drive(build("best_of_n", "answers", n=8), world=World(3))
    with pytest.raises(ValueError, match="steps, scores"):
        drive(build("best_of_n", "steps", n=8), world=AnswerWorld(3))
