"""scripts.bench.flashtts.tree_difference: other choices are told from other last bits."""

from dataclasses import replace

import pytest

from flashedge.runtime.drive.driver import Outcome
from flashedge.search.base import Finish
from flashedge.search.tree import Node, Nodes, NodeStatus, Tree
from flashedge.types import FinishReason, Segment
from scripts.bench.flashtts.tree_difference import compare_outcomes

PROMPT_TOKENS = 100


def build_outcome(*, token: int = 7, logprob: float = -0.5, score: float = 0.25) -> Outcome:
    """A tree of one step."""
    written = {"token_ids": (token, 8), "logprobs": (logprob, -0.5), "text": "a", "steps": ("a",)}
    segment = Segment(**written, finish=FinishReason.STOP)  # type: ignore[arg-type]
    place = {"id": 1, "parent": 0, "depth": 1, "index": 0, "seed": 2, "path_tokens": 2}
    node = Node(**place, status=NodeStatus.COMPLETE, segment=segment, scores=(score,))  # type: ignore[arg-type]
    tree = Tree(nodes=Nodes().update((Tree.from_seed(1)[0], node)))
    finish = Finish(choice=1, answer="a", votes=())
    return Outcome(tree=tree, finish=finish, history=(), cut_by=None)


def test_equal_runs_do_not_differ() -> None:
    found = compare_outcomes(build_outcome(), build_outcome(), PROMPT_TOKENS)
    assert (found.is_equal, found.chose_same, found.from_tokens) == (True, True, None)


@pytest.mark.parametrize(
    ("changed", "largest"), [({"score": 0.5}, 0.25), ({"logprob": -0.25}, 0.0)]
)
def test_another_score_or_log_probability_is_a_difference_of_numbers(
    changed: dict[str, float], largest: float
) -> None:
    found = compare_outcomes(build_outcome(**changed), build_outcome(), PROMPT_TOKENS)  # type: ignore[arg-type]
    assert (found.is_equal, found.chose_same) == (False, True)
    assert (found.largest, found.from_tokens) == (largest, PROMPT_TOKENS + 2)


@pytest.mark.parametrize("change", ["token", "answer", "cut", "nodes"])
def test_another_choice_is_no_difference_of_numbers(change: str) -> None:
    stock = build_outcome()
    ours = {
        "token": build_outcome(token=9),
        "answer": replace(stock, finish=replace(stock.finish, answer="b")),
        "cut": replace(stock, cut_by="budget"),
        "nodes": replace(stock, tree=Tree.from_seed(1)),
    }[change]
    found = compare_outcomes(ours, stock, PROMPT_TOKENS)
    assert (found.is_equal, found.chose_same) == (False, False)
