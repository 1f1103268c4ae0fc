"""Events in words, one line each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from flashedge import events
from flashedge.client.words import format_count
from flashedge.events import Event

CATEGORIES = ("steps", "certainty", "memory", "errors")
"""What the lines can be filtered by. The run's start and end belong to none of them."""

_CATEGORY: Mapping[type, str] = {
    events.NodesExpanded: "steps",
    events.StepCompleted: "steps",
    events.NodeScored: "steps",
    events.NodesMarked: "steps",
    events.RolloutsEnded: "steps",
    events.Probed: "certainty",
    events.CertaintyUpdated: "certainty",
    events.EarlyExit: "certainty",
    events.KvSplitChanged: "memory",
    events.Offloaded: "memory",
    events.Restored: "memory",
    events.EngineRestarted: "errors",
    events.RunFailed: "errors",
    events.RunCancelled: "errors",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLine:
    """One event of a run, in words."""

    seq: int
    kind: str
    """The event's name."""

    category: str
    """One of `CATEGORIES`, or "run"."""

    text: str


def category_of(event: Event) -> str:
    return _CATEGORY.get(type(event), "run")


def describe(event: Event) -> str | None:
    """The event in a line, without its number. None for Progress, which is sent too often."""
    match event:
        case events.Progress():
            return None
        case events.RunStarted():
            return f"started after {event.queue_s:.1f} s in the queue"
        case events.NodesExpanded():
            first = event.children[0][0] if event.children else "-"
            return f"node {event.parent}: {len(event.children)} children from {first}"
        case events.StepCompleted():
            return f"node {event.node}: {len(event.token_ids)} tokens, {event.finish}"
        case events.NodeScored():
            return f"node {event.node}: score {event.score:.2f}"
        case events.NodesMarked():
            return f"{format_count(len(event.nodes), 'node')} {event.status}"
        case events.RolloutsEnded():
            ends = ", ".join(str(node) for node in event.nodes)
            return f"{format_count(len(event.nodes), 'rollout')} ended in node {ends}"
        case events.CertaintyUpdated():
            value = "unknown" if event.certainty is None else f"{event.certainty:.2f}"
            return f"certainty {value} from {format_count(event.answers, 'answer')}"
        case events.Probed():
            return f"node {event.node} probed: {' '.join(event.text.split())[:60]}"
        case events.EarlyExit():
            return f"stopped early: {event.reason.replace('_', ' ')}"
        case events.EngineRestarted():
            return f"the {event.engine} engine died and was restarted in {event.waited_s:.1f} s"
        case events.KvSplitChanged():
            mib = event.generator_bytes / 2**20, event.verifier_bytes / 2**20
            turns = ", one engine at a time" if event.offload else ""
            return f"KV memory: {mib[0]:.0f} MiB generator, {mib[1]:.0f} MiB verifier{turns}"
        case events.Offloaded():
            return f"{event.engine} KV offloaded: {event.saved_bytes / 2**20:.0f} MiB saved"
        case events.Restored():
            return f"{event.engine} KV restored: {event.loaded_bytes / 2**20:.0f} MiB loaded"
        case events.RunFinished():
            return f"finished: {_answer(event.result)}"
        case events.RunFailed():
            return f"failed: {event.error}"
        case events.RunCancelled():
            return f"cancelled: {event.reason}"
    assert_never(event)


def _answer(result: Mapping[str, Any]) -> str:
    answer = result.get("answer")
    return "no boxed answer" if answer is None else f"the answer is {answer}"
