"""The comparison of a run with its repetition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flashedge.runtime.records.repetition import (
    RecordedNode,
    RecordedRun,
    compare_fingerprints,
    find_difference,
)
from flashedge.types import NodeId
from tests.support.made_run import build_result, build_start

ROOT, FIRST, SECOND = NodeId(0), NodeId(1), NodeId(2)
NODES = [
    {"id": 0, "parent": None, "status": "active", "token_ids": []},
    {"id": 1, "parent": 0, "status": "pruned", "token_ids": list(b"no")},
    {"id": 2, "parent": 0, "status": "complete", "token_ids": list(b"yes")},
]


def record(nodes: list[dict[str, Any]] = NODES, **changes: Any) -> RecordedRun:
    result = build_result(tree={"root": 0, "nodes": nodes}, **changes)
    return RecordedRun.from_log(result, build_start({}, (("no", 0.25), ("yes", 0.75))))


def alter(run: RecordedRun, node: NodeId, **changes: Any) -> RecordedRun:
    return replace(run, nodes={**run.nodes, node: replace(run.nodes[node], **changes)})


def test_a_run_equals_itself() -> None:
    run = record()
    drawn = {"token_ids": tuple(b"yes"), "logprobs": (-0.5,) * 3, "scores": (0.75,)}
    assert run.nodes[SECOND] == RecordedNode(parent=ROOT, status="complete", **drawn)
    assert find_difference(run, record()) is None


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"token_ids": tuple(b"yet")}, "node 2: token 2 is 116, and 115 is stored (token_ids)"),
        ({"logprobs": (-0.5, -0.5, -0.5000000000000001)}, "node 2: log-probability 2 is -0.5"),
        ({"logprobs": (-0.5,)}, "node 2: it has 1 logprobs, and 3 are stored"),
        ({"scores": (0.7500000000000001,)}, "node 2: score 0 is 0.7500000000000001"),
        ({"parent": FIRST}, "node 2: parent is 1, and 0 is stored"),
        ({"status": "pruned"}, "node 2: status is 'pruned', and 'complete' is stored"),
    ],
)
def test_the_first_difference_of_a_node_is_named(changes: dict[str, Any], named: str) -> None:
    run = record()
    difference = find_difference(run, alter(run, SECOND, **changes))
    assert difference.startswith(named)
    both = alter(alter(run, SECOND, **changes), FIRST, scores=(0.0,))
    assert str(find_difference(run, both)).startswith("node 1: score 0")


def test_nodes_and_choices_are_compared() -> None:
    run = record()
    assert find_difference(run, record(NODES[:2])) == "node 2 is missing"
    assert find_difference(record(NODES[:2]), run) == "node 2 is new"
    other = find_difference(run, record(answer="3"))
    assert other == "the field answer is '3', and '2' is stored"


def test_what_had_arrived_of_a_cancelled_node_does_not_count() -> None:
    gone = [NODES[0], {**NODES[1], "status": "cancelled", "token_ids": []}, NODES[2]]
    assert record(gone).nodes[FIRST] == RecordedNode(parent=ROOT, status="cancelled")


def test_the_first_name_by_which_fingerprints_differ_is_given() -> None:
    was = {"vllm": "0.32.0", "verifier": {"digest": "a", "dtype": "float32"}}
    assert compare_fingerprints(was, was) is None
    now = {**was, "verifier": {"digest": "b", "dtype": "float32"}}
    assert compare_fingerprints(was, now) == "verifier.digest was 'a' and is 'b'"
    assert compare_fingerprints(was, {**was, "threads": 2}) == "threads was None and is 2"
