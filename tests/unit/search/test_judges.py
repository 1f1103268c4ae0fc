"""A verifier of whole answers: the strategies that it serves, and its one score for each answer."""

from __future__ import annotations

from typing import Any

import pytest

from flashedge.errors import RequestError
from flashedge.search.base import Scored, Search
from flashedge.search.catalog import WITHOUT_STEP_SCORES, check_judges, make_search
from flashedge.search.tree import Tree
from flashedge.types import STRATEGIES, Judges, NodeId
from tests.support.search_rig import World, drive


def build(strategy: str, judges: Judges, **fields: Any) -> Search[Any]:
    usual = {"n": 4, "branching": 2, "aggregate": "prod", "selection": "best"}
    return make_search(
        strategy, **{**usual, "max_step_tokens": 8, "max_steps": 6, **fields}, judges=judges
    )


class AnswerWorld(World):
    """Gives each node one score, however many steps it holds."""

    def scores(self, tree: Tree, node: NodeId) -> tuple[float, ...]:
        return World.scores(self, tree, node)[:1]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_only_strategies_that_judge_whole_answers_take_their_verifier(strategy: str) -> None:
    build(strategy, "steps", n=1)
    if strategy in ("best_of_n", "self_consistency", "probed_cot"):
        build(strategy, "answers", n=1)
        return
    with pytest.raises(RequestError, match=f"'{strategy}' needs scores of single steps") as caught:
        build(strategy, "answers")
    assert "best_of_n or self_consistency" in str(caught.value.hint)
    assert caught.value.param == "strategy"


def test_a_program_of_the_users_needs_scores_of_steps() -> None:
    assert "my_way" not in WITHOUT_STEP_SCORES
    with pytest.raises(RequestError, match="my_way"):
        check_judges("my_way", "answers")


def test_the_answer_with_the_best_score_is_chosen() -> None:
    run = drive(build("best_of_n", "answers", n=8), world=AnswerWorld(3))
    scores = {r.node: r.scores for r in run.results if isinstance(r, Scored)}
    assert len(scores) == 8
    with_answer = [n for n in scores if run.tree[n].answer is not None]
    steps = [len(run.tree[n].segment.steps) for n in scores if run.tree[n].segment]
    assert max(steps) > 1, "with one step each, nothing would be shown"
    best = max(with_answer, key=lambda n: (scores[n], -n))
    assert run.end.choice == best, "a product over steps would choose another"


def test_a_score_for_each_step_is_refused_where_one_is_expected() -> None:
    with pytest.raises(ValueError, match="1 answer, scores"):
        drive(build("best_of_n", "answers", n=8), world=World(3))
    with pytest.raises(ValueError, match="steps, scores"):
        drive(build("best_of_n", "steps", n=8), world=AnswerWorld(3))
