"""What a watcher knows of a run's tree: a pure fold over its events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, assert_never

from flashedge import events
from flashedge.client.sync_client import Queued
from flashedge.events import Event
from flashedge.types import NodeId

ROOT = NodeId(0)
ALIVE = ("generating", "generated", "active")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenNode:
    """tokens: so far; score: the whole path's; status: as in `search.tree.NodeStatus`."""

    id: NodeId
    parent: NodeId | None
    index: int = 0
    status: str = "generating"
    tokens: int = 0
    text: str = ""
    score: float | None = None


def _only_root() -> Mapping[NodeId, SeenNode]:
    return MappingProxyType({ROOT: SeenNode(id=ROOT, parent=None, status="active")})


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeView:
    """state: waiting, running, finished, failed or cancelled."""

    run: str | None = None
    state: str = "waiting"
    position: int | None = None
    nodes: Mapping[NodeId, SeenNode] = field(default_factory=_only_root)
    certainty: float | None = None
    answers: int = 0
    note: str | None = None
    result: Mapping[str, Any] | None = None

    @property
    def tokens(self) -> int:
        return sum(n.tokens for n in self.nodes.values())

    @property
    def complete(self) -> int:
        return sum(n.status == "complete" for n in self.nodes.values())

    @property
    def alive(self) -> int:
        return sum(n.status in ALIVE for n in self.nodes.values() if n.id != ROOT)

    def path(self, node: NodeId) -> tuple[NodeId, ...]:
        """Ids from below the root down to `node`."""
        found: list[NodeId] = []
        at: NodeId | None = node
        while at is not None and at != ROOT and at in self.nodes:
            found.append(at)
            at = self.nodes[at].parent
        return tuple(reversed(found))

    @property
    def chosen(self) -> frozenset[NodeId]:
        """The nodes of the path that the run chose; empty until it is over."""
        choice = (self.result or {}).get("choice")
        return frozenset(self.path(NodeId(choice))) if isinstance(choice, int) else frozenset()


def fold(view: TreeView, event: Event | Queued) -> TreeView:
    """The view after `event`. Events of nodes that were never seen change nothing."""
    match event:
        case Queued():
            return replace(view, run=event.id, position=event.position)
        case events.RunStarted():
            return replace(view, state="running", position=None)
        case events.NodesExpanded():
            made = {
                node: SeenNode(id=node, parent=event.parent, index=index)
                for node, index, _ in event.children
            }
            return _with(view, made)
        case events.Progress():
            known = [(n, t) for n, t in event.tokens if n in view.nodes]
            return _with(view, {n: replace(view.nodes[n], tokens=t) for n, t in known})
        case events.StepCompleted():
            return _changed(
                view,
                event.node,
                tokens=len(event.token_ids),
                text=event.text,
                status="generated",
            )
        case events.NodeScored():
            return _changed(view, event.node, score=event.score)
        case events.NodesMarked():
            found = [n for n in event.nodes if n in view.nodes]
            return _with(view, {n: replace(view.nodes[n], status=event.status) for n in found})
        case events.CertaintyUpdated():
            return replace(view, certainty=event.certainty, answers=event.answers)
        case events.Probed():
            return view
        case events.EarlyExit():
            return replace(view, note=f"stopped early: {event.reason}")
        case events.EngineRestarted():
            said = f"the {event.engine} engine died and is back after {event.waited_s:.1f} s"
            return replace(view, note=said)
        case events.KvSplitChanged() | events.Offloaded() | events.Restored():
            return view
        case events.RunFinished():
            return replace(view, state="finished", result=event.result)
        case events.RunFailed():
            return replace(view, state="failed", note=event.error)
        case events.RunCancelled():
            return replace(view, state="cancelled", note=event.reason)
    assert_never(event)


def _with(view: TreeView, changed: Mapping[NodeId, SeenNode]) -> TreeView:
    return replace(view, nodes=MappingProxyType({**view.nodes, **changed}))


def _changed(view: TreeView, node: NodeId, **fields: Any) -> TreeView:
    if node not in view.nodes:
        return view
    return _with(view, {node: replace(view.nodes[node], **fields)})


def from_result(result: Mapping[str, Any]) -> TreeView:
    """The view of a finished run from its object alone."""
    nodes = {
        NodeId(n["id"]): SeenNode(
            id=NodeId(n["id"]),
            parent=n["parent"],
            status=n["status"],
            tokens=n["tokens"],
            text=n["text"],
            score=n["score"],
        )
        for n in result["tree"]["nodes"]
    }
    return TreeView(
        run=result.get("id"),
        state="finished",
        nodes=MappingProxyType(nodes),
        certainty=result.get("certainty"),
        result=result,
    )
