"""Compares a run with the run that repeats it: tokens, log-probabilities, confidences, scores and
choices, to the bit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from flashedge.events import Event, NodeScored, StepCompleted
from flashedge.search.tree import NodeStatus
from flashedge.types import NodeId, TokenIds

CHOICES = ("choice", "answer", "votes", "cut_by", "unlikely")
"""Fields of a result that say what the search chose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedNode:
    """What a run stored of one node. Of a cancelled node that is only its parent and status, since
    the rest depends on when it was cancelled."""

    parent: NodeId | None
    status: str
    token_ids: TokenIds = ()
    logprobs: tuple[float, ...] = ()
    confidences: tuple[float, ...] = ()
    scores: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """What two runs of the same request must have in common."""

    nodes: Mapping[NodeId, RecordedNode]
    choices: Mapping[str, Any]
    fingerprint: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_log(cls, result: Mapping[str, Any], run_events: Iterable[Event]) -> RecordedRun:
        """result: the run's object, as `build_result` builds it."""
        log = tuple(run_events)
        steps = {event.node: event for event in log if isinstance(event, StepCompleted)}
        scores = {event.node: event.scores for event in log if isinstance(event, NodeScored)}
        nodes: dict[NodeId, RecordedNode] = {}
        for found in result["tree"]["nodes"]:
            node, gone = found["id"], found["status"] == NodeStatus.CANCELLED
            step = None if gone else steps.get(node)
            nodes[node] = RecordedNode(
                parent=found["parent"],
                status=found["status"],
                token_ids=tuple(found["token_ids"]),
                logprobs=step.logprobs if step else (),
                confidences=step.confidences if step else (),
                scores=() if gone else scores.get(node, ()),
            )
        return cls(
            nodes=nodes,
            choices={name: result.get(name) for name in CHOICES},
            fingerprint=result.get("fingerprint") or {},
        )


def find_difference(stored: RecordedRun, again: RecordedRun) -> str | None:
    """Describe the first difference between the runs: in a node, or else in the choices. None if
    there is none."""
    for node in sorted({*stored.nodes, *again.nodes}):
        was, now = stored.nodes.get(node), again.nodes.get(node)
        if was is None or now is None:
            return f"node {node} is {'new' if was is None else 'missing'}"
        if (difference := next(_compare_nodes(was, now), None)) is not None:
            return f"node {node}: {difference}"
    for name in CHOICES:
        if stored.choices.get(name) != again.choices.get(name):
            return (
                f"the field {name} is {again.choices.get(name)!r},"
                f" and {stored.choices.get(name)!r} is stored"
            )
    return None


def compare_fingerprints(stored: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Name the first entry in which two fingerprints differ, with both values, or return None."""
    was, found = dict(_flatten(stored)), dict(_flatten(now))
    for name in [*was, *(name for name in found if name not in was)]:
        if was.get(name) != found.get(name):
            return f"{name} was {was.get(name)!r} and is {found.get(name)!r}"
    return None


_NUMBERED = {
    "token_ids": "token",
    "logprobs": "log-probability",
    "confidences": "confidence",
    "scores": "score",
}
"""What each token or step of a node has, by its field, in the singular."""


def _compare_nodes(was: RecordedNode, now: RecordedNode) -> Iterator[str]:
    if was.parent != now.parent:
        yield f"parent is {now.parent!r}, and {was.parent!r} is stored"
    for name, one in _NUMBERED.items():
        before, after = getattr(was, name), getattr(now, name)
        for at, (old, new) in enumerate(zip(before, after, strict=False)):
            if old != new:
                yield f"{one} {at} is {new!r}, and {old!r} is stored ({name})"
        if len(before) != len(after):
            yield f"it has {len(after)} {name}, and {len(before)} are stored"
    if was.status != now.status:
        yield f"status is {now.status!r}, and {was.status!r} is stored"


def _flatten(found: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in found.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
