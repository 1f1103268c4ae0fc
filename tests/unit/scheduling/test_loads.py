"""The load of a level, of one tree and of several runs."""

from __future__ import annotations

from flashedge.scheduling.kv.stages import FIRST_STEP_TOKENS, Workload, combine_loads, estimate_load
from flashedge.search.tree import ROOT, NodeStatus, Tree
from flashedge.types import FinishReason, Granularity, NodeId, Segment

STEP = Granularity(max_tokens=100)


def load_of(paths: int, context: int, live: int, step: int) -> Workload:
    return Workload(paths=paths, context_tokens=context, live_tokens=live, step_tokens=step)


def grow(tree: Tree, node: int, tokens: int) -> Tree:
    ids, logprobs, finish = (7,) * tokens, (0.0,) * tokens, FinishReason.BOUNDARY
    segment = Segment(token_ids=ids, logprobs=logprobs, text="x", steps=("x",), finish=finish)
    done = tree.add_segment(NodeId(node), segment)
    return done.mark({NodeId(node): NodeStatus.ACTIVE})


def test_the_first_level_shares_its_prompt() -> None:
    tree, _ = Tree.from_seed(1).expand(ROOT, 4)
    for step, tokens in (
        (STEP, FIRST_STEP_TOKENS),
        (Granularity(max_tokens=30), 30),
        (Granularity(max_tokens=600, to_end=True), 300),
    ):
        assert estimate_load(tree, 50, step) == load_of(4, 50, 50, tokens)


def test_shared_ancestors_count_once_and_dead_branches_not_at_all() -> None:
    tree, _ = Tree.from_seed(1).expand(ROOT, 3)
    for node, tokens in ((1, 10), (2, 20), (3, 90)):
        tree = grow(tree, node, tokens)
    assert estimate_load(tree, 50, STEP) is None
    tree, _ = tree.expand(NodeId(1), 2)
    tree, _ = tree.expand(NodeId(2), 1)
    assert estimate_load(tree, 50, STEP) == load_of(3, (60 + 60 + 70) // 3, 80, 40)


def test_a_path_of_an_earlier_level_that_still_grows_counts() -> None:
    tree, _ = Tree.from_seed(1).expand(ROOT, 2)
    tree, _ = grow(tree, 1, 10).expand(NodeId(1), 1)
    assert estimate_load(tree, 50, STEP) == load_of(2, (50 + 60) // 2, 60, 10)


def test_the_loads_of_several_runs_are_added_up() -> None:
    a, b = load_of(4, 100, 200, 40), load_of(1, 300, 300, 90)
    assert combine_loads([a, b]) == load_of(5, 140, 500, 50)
    assert combine_loads([a]) == a
    assert combine_loads([]) is None
