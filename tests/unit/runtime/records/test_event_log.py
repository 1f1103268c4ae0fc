"""A run's log: numbers, late and slow followers, the end, and the comparison with a repetition."""

import asyncio
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashedge.events import TERMINAL, Event, NodesMarked, Progress, RunCancelled, RunFinished
from flashedge.runtime.records.event_log import EventLog
from flashedge.runtime.records.repetition import (
    RecordedNode,
    RecordedRun,
    compare_fingerprints,
    find_difference,
)
from flashedge.types import NodeId
from scripts.lab.sim.clock import run_virtual
from tests.support.made_run import build_result, build_start

END = RunFinished(result={})


def mark(number: int) -> NodesMarked:
    return NodesMarked(status="active", nodes=(NodeId(number),))


def progress(tokens: int) -> Progress:
    return Progress(tokens=((NodeId(1), tokens),))


async def collect(log: EventLog, after: int = 0, pause_s: float = 0.0) -> list[tuple[int, Event]]:
    found = []
    async with aclosing(log.follow(after)) as events:  # type: ignore[type-var]
        async for item in events:
            found.append(item)
            await asyncio.sleep(pause_s)
    return found


async def test_numbers_start_at_one_and_progress_has_none() -> None:
    log = EventLog()
    assert log.last == 0
    told = [progress(1), mark(1), progress(2), progress(3), mark(2), END]
    assert [log.append(event) for event in told] == [0, 1, 1, 1, 2, 3]
    assert log.read() == [(1, mark(1)), (2, mark(2)), (3, END)]
    assert log.read(2) == [(3, END)]
    assert log.read(3) == log.read(99) == []
    assert log.is_closed


@pytest.mark.parametrize("end", [END, RunCancelled(reason="r")])
@pytest.mark.parametrize("event", [mark(1), progress(1), END])
def test_nothing_follows_the_end(end: Event, event: Event) -> None:
    log = EventLog()
    log.append(end)
    with pytest.raises(RuntimeError, match="after the run's terminal event"):
        log.append(event)
    assert log.read() == [(1, end)]


async def test_a_slow_follower_loses_old_progress_only() -> None:
    log = EventLog()
    slow = asyncio.create_task(collect(log, pause_s=1.0))
    await asyncio.sleep(0.1)
    for number in range(1, 6):
        for tokens in range(10):
            log.append(progress(tokens))
            await asyncio.sleep(0.01)
        log.append(mark(number))
    await asyncio.sleep(30)
    log.append(progress(77))
    await asyncio.sleep(30)
    log.append(END)
    found = await slow
    assert [item for item in found if not isinstance(item[1], Progress)] == log.read()
    assert found[0] == (0, progress(0))
    assert found[-2:] == [(5, progress(77)), (6, END)]
    assert len(found) <= 6 + 3


async def test_a_follower_that_leaves_is_forgotten() -> None:
    log = EventLog()
    log.append(mark(1))
    events = log.follow()
    assert await anext(events) == (1, mark(1))  # type: ignore[arg-type]
    await events.aclose()  # type: ignore[attr-defined]
    waiting = asyncio.create_task(collect(log))
    await asyncio.sleep(1)
    waiting.cancel()
    await asyncio.wait({waiting})
    assert not log._followers


@given(
    st.lists(st.sampled_from(["mark", "progress", "pause"]), max_size=30),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 30), st.booleans()), max_size=4),
)
def test_every_follower_sees_every_event_above_its_number(
    script: list[str], followers: list[tuple[int, int, bool]]
) -> None:
    """followers: (time of joining, number to resume after, slow)."""

    async def main() -> None:
        log = EventLog()

        async def follow(at_s: int, after: int, slow: bool) -> None:
            await asyncio.sleep(at_s)
            found = await collect(log, after, pause_s=1.7 if slow else 0.0)
            kept = [item for item in found if not isinstance(item[1], Progress)]
            assert kept == [item for item in log.read() if item[0] > after]
            numbers = [number for number, _ in found]
            assert all(a <= b for a, b in pairwise(numbers))
            assert all(not isinstance(event, TERMINAL) for _, event in found[:-1])

        async with asyncio.TaskGroup() as group:
            for follower in followers:
                group.create_task(follow(*follower))
            for number, what in enumerate(script):
                await asyncio.sleep(what == "pause")
                if what != "pause":
                    log.append(mark(number) if what == "mark" else progress(number))
            await asyncio.sleep(5)
            log.append(END)

    run_virtual(main())


# ---------------------------------------------------------------- a run and its repetition


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
        ({"confidences": (9.5,) * 3}, "node 2: it has 3 confidences, and 0 are stored"),
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


def test_a_missing_and_a_new_node_are_named() -> None:
    run = record()
    assert find_difference(run, record(NODES[:2])) == "node 2 is missing"
    assert find_difference(record(NODES[:2]), run) == "node 2 is new"


def test_what_had_arrived_of_a_cancelled_node_does_not_count() -> None:
    gone = [NODES[0], {**NODES[1], "status": "cancelled", "token_ids": []}, NODES[2]]
    assert record(gone).nodes[FIRST] == RecordedNode(parent=ROOT, status="cancelled")


def test_the_first_name_by_which_fingerprints_differ_is_given() -> None:
    was = {"vllm": "0.32.0", "verifier": {"digest": "a", "dtype": "float32"}}
    now = {**was, "verifier": {"digest": "b", "dtype": "float32"}}
    assert compare_fingerprints(was, now) == "verifier.digest was 'a' and is 'b'"
    assert compare_fingerprints(was, {**was, "threads": 2}) == "threads was None and is 2"
