"""Events in words, for the event log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from flashedge import events
from flashedge.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One event of a run; kind: the event's name."""

    seq: int
    kind: str
    text: str


def said(event: Event) -> str | None:
    """The event in a line, without its number; None for Progress, which is too frequent to tell."""
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
            nodes = "1 node" if len(event.nodes) == 1 else f"{len(event.nodes)} nodes"
            return f"{nodes} {event.status}"
        case events.CertaintyUpdated():
            value = "unknown" if event.certainty is None else f"{event.certainty:.2f}"
            return f"certainty {value} of {event.answers} answers"
        case events.Probed():
            return f"node {event.node} probed: {' '.join(event.text.split())[:60]}"
        case events.EarlyExit():
            return f"stopped early: {event.reason.replace('_', ' ')}"
        case events.EngineRestarted():
            return f"the {event.engine} engine died and is back after {event.waited_s:.1f} s"
        case events.KvSplitChanged():
            mib = event.generator_bytes / 2**20, event.verifier_bytes / 2**20
            turns = ", in turn" if event.offload else ""
            return f"KV memory: {mib[0]:.0f} MiB generator, {mib[1]:.0f} MiB verifier{turns}"
        case events.Offloaded():
            return f"the {event.engine}'s KV is away: {event.saved_bytes / 2**20:.0f} MiB saved"
        case events.Restored():
            return f"the {event.engine}'s KV is back: {event.loaded_bytes / 2**20:.0f} MiB"
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
