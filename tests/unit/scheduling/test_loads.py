"""The load of a level, of one tree and of several runs; which engine owns the memory."""

from __future__ import annotations

import pytest

from flashedge.scheduling.kv.loads import FIRST_STEP_TOKENS, combine_loads, estimate_load
from flashedge.scheduling.kv.ownership import EngineRole, Ownership
from flashedge.scheduling.kv.stages import Workload
from flashedge.search.tree import ROOT, NodeStatus, Tree
from flashedge.types import FinishReason, Granularity, NodeId, Segment

STEP = Granularity(max_tokens=100)
GENERATOR, VERIFIER = EngineRole.GENERATOR, EngineRole.VERIFIER


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


def test_the_memory_changes_hands_at_a_common_barrier() -> None:
    state = Ownership().open_request(GENERATOR).open_request(GENERATOR)
    state = state.close_request(GENERATOR).open_request(VERIFIER)  # the first run scores
    assert state.next_owner is GENERATOR  # the second one still generates
    state = state.close_request(GENERATOR)
    assert state.next_owner is VERIFIER
    state = state.give_to(VERIFIER)
    assert (state.owner, state.next_owner) == (VERIFIER, VERIFIER)
    state = state.close_request(VERIFIER)
    assert state.next_owner is VERIFIER  # no request is open for the other engine
    assert state.open_request(GENERATOR).next_owner is GENERATOR


def test_only_an_open_request_can_be_closed() -> None:
    with pytest.raises(ValueError, match="no verifier request"):
        Ownership().open_request(GENERATOR).close_request(VERIFIER)
