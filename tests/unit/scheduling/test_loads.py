"""The load of a level, of one tree and of several runs."""

from __future__ import annotations

from flashedge.scheduling.kv.stages import FIRST_STEP_TOKENS, Workload, combine_loads, estimate_load
from flashedge.search.tree import ROOT, NodeStatus, Tree
from flashedge.types import FinishReason, Granularity, NodeId, Segment

STEP = Granularity(max_tokens=100)


def grown(tree: Tree, node: int, tokens: int) -> Tree:
    segment = Segment(
        token_ids=(7,) * tokens,
        logprobs=(0.0,) * tokens,
        text="x",
        steps=("x",),
        finish=FinishReason.BOUNDARY,
    )
    done = tree.add_segment(NodeId(node), segment)
    return done.mark({NodeId(node): NodeStatus.ACTIVE})


def test_the_first_level_shares_its_prompt() -> None:
    tree, _ = Tree.from_seed(1).expand(ROOT, 4)
    load = estimate_load(tree, 50, STEP)
    expected = Workload(paths=4, context_tokens=50, live_tokens=50, step_tokens=FIRST_STEP_TOKENS)
    assert load == expected
    assert estimate_load(tree, 50, Granularity(max_tokens=30)) == Workload(
        paths=4, context_tokens=50, live_tokens=50, step_tokens=30
    )
    whole = estimate_load(tree, 50, Granularity(max_tokens=600, to_end=True))
    assert whole is not None
    assert whole.step_tokens == 300


def test_shared_ancestors_count_once_and_dead_branches_not_at_all() -> None:
    tree, _ = Tree.from_seed(1).expand(ROOT, 3)
    for node, tokens in ((1, 10), (2, 20), (3, 90)):
        tree = grown(tree, node, tokens)
    assert estimate_load(tree, 50, STEP) is None
    tree, _ = tree.expand(NodeId(1), 2)
    tree, _ = tree.expand(NodeId(2), 1)
    load = estimate_load(tree, 50, STEP)
    assert load == Workload(
        paths=3, context_tokens=(60 + 60 + 70) // 3, live_tokens=80, step_tokens=40
    )


def test_a_path_that_still_grows_counts_beside_a_new_one() -> None:
    tree, _ = Tree.from_seed(1).expand(ROOT, 2)
    tree = grown(tree, 1, 10)
    tree, _ = tree.expand(NodeId(1), 1)
    load = estimate_load(tree, 50, STEP)
    assert load is not None
    assert load.paths == 2


def test_the_loads_of_several_runs_are_added_up() -> None:
    a = Workload(paths=4, context_tokens=100, live_tokens=200, step_tokens=40)
    b = Workload(paths=1, context_tokens=300, live_tokens=300, step_tokens=90)
    assert combine_loads([a, b]) == Workload(
        paths=5, context_tokens=140, live_tokens=500, step_tokens=50
    )
    assert combine_loads([a]) == a
    assert combine_loads([]) is None
