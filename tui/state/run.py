"""One run as the dashboard sees it: a pure fold over its numbered events.

A live run and a stored one go through the same `fold`. Folding in one piece or in any chunks gives
the same state: what a chunk holds of superseded Progress is dropped before it costs anything.
Tokens of nodes that still generate stand apart (`growing`), so that a stored run, which has no
Progress, ends in the very state of the live one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, assert_never

from flashedge import events
from flashedge.events import Event, Progress
from flashedge.tui.log_line import LogLine, said
from flashedge.tui.state.node import KEPT, ROOT, SeenNode
from flashedge.types import NodeId

Numbered = tuple[int, Event]
LOG_LINES = 400
OVER = frozenset({"finished", "failed", "cancelled", "interrupted"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CertaintyPoint:
    """tokens: committed ones of the whole tree when the certainty was taken; measures: by name,
    all that were taken with it."""

    tokens: int
    certainty: float | None
    answers: int
    measures: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """The moment at which the run stopped before its own end, and why."""

    tokens: int
    reason: str


def _no_nodes() -> Mapping[NodeId, SeenNode]:
    return MappingProxyType({ROOT: SeenNode(id=ROOT, parent=None, status="active")})


def _empty() -> Mapping[Any, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """state: waiting, running, finished, failed, cancelled or interrupted.

    seq: number of the last event folded; growing: tokens so far of nodes that generate; tokens:
    committed ones; kept_tokens: those of nodes that are active or complete; latest: the node that
    an event touched last.
    """

    id: str
    state: str = "waiting"
    seq: int = 0
    nodes: Mapping[NodeId, SeenNode] = field(default_factory=_no_nodes)
    children: Mapping[NodeId, tuple[NodeId, ...]] = field(default_factory=_empty)
    growing: Mapping[NodeId, int] = field(default_factory=_empty)
    tokens: int = 0
    kept_tokens: int = 0
    certainty: tuple[CertaintyPoint, ...] = ()
    exit: Exit | None = None
    config: Mapping[str, Any] = field(default_factory=_empty)
    result: Mapping[str, Any] | None = None
    note: str | None = None
    latest: NodeId | None = None
    log: tuple[LogLine, ...] = ()

    @property
    def over(self) -> bool:
        return self.state in OVER

    @property
    def all_tokens(self) -> int:
        """Committed tokens and those of nodes that still generate."""
        return self.tokens + sum(self.growing.values())

    @property
    def complete(self) -> int:
        return sum(n.status == "complete" for n in self.nodes.values())

    @property
    def depth(self) -> int:
        return max(n.depth for n in self.nodes.values())

    @property
    def best(self) -> NodeId | None:
        """The chosen path's end; while the run goes on, the kept leaf with the best score."""
        choice = (self.result or {}).get("choice")
        if isinstance(choice, int) and choice in self.nodes:
            return NodeId(choice)
        leaves = (n for n in self.nodes.values() if n.status in KEPT and n.score is not None)
        found = max(leaves, key=lambda n: (n.depth, n.score or 0.0, -n.id), default=None)
        return None if found is None else found.id

    def path(self, node: NodeId | None) -> tuple[NodeId, ...]:
        """Ids from below the root down to `node`."""
        ids: list[NodeId] = []
        while node is not None and node != ROOT and node in self.nodes:
            ids.append(node)
            node = self.nodes[node].parent
        return tuple(reversed(ids))

    @property
    def thresholds(self) -> Mapping[str, float]:
        """Certainty at which the run stops early, by the measure's name; empty: it does not."""
        return thresholds_of(self.config)


def fold(run: RunState, items: Iterable[Numbered]) -> RunState:
    """The run after `items`. Events that were folded before, and of unknown nodes, change nothing.

    Progress carries the number of the event before it: it counts unless a later one was folded.
    """
    draft = _Draft(run)
    for seq, event in coalesced(run.seq, items):
        draft.apply(seq, event)
    return draft.frozen()


def coalesced(seen: int, items: Iterable[Numbered]) -> list[Numbered]:
    """`items` after number `seen`, without the token counts that a later Progress tells anew."""
    fresh: list[Numbered] = []
    for seq, event in items:
        stale = seq < seen if isinstance(event, Progress) else seq <= seen
        if stale:
            continue
        fresh.append((seq, event))
        if not isinstance(event, Progress):
            seen = seq
    if sum(isinstance(event, Progress) for _, event in fresh) < 2:
        return fresh
    told: set[NodeId] = set()
    kept: list[Numbered] = []
    for seq, event in reversed(fresh):
        if isinstance(event, Progress):
            news = tuple((n, t) for n, t in event.tokens if n not in told)
            told.update(n for n, _ in news)
            if news:
                kept.append((seq, Progress(tokens=news)))
        else:
            kept.append((seq, event))
    return kept[::-1]


def interrupted(run: RunState) -> RunState:
    """The daemon ended under the run: no more events will come."""
    note = "the daemon ended under the run"
    return run if run.over else replace(run, state="interrupted", note=note, growing=_empty())


class _Draft:
    """What one `fold` changes. Tables are copied when they are first written."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._nodes: dict[NodeId, SeenNode] | None = None
        self._children: dict[NodeId, tuple[NodeId, ...]] | None = None
        self._growing: dict[NodeId, int] | None = None
        self._log: list[LogLine] = []
        self._certainty: list[CertaintyPoint] = []
        self._fields: dict[str, Any] = {"seq": run.seq}
        self._tokens, self._kept_tokens = run.tokens, run.kept_tokens

    def frozen(self) -> RunState:
        run, fields = self._run, self._fields
        if self._nodes is not None:
            fields["nodes"] = MappingProxyType(self._nodes)
        if self._children is not None:
            fields["children"] = MappingProxyType(self._children)
        if self._growing is not None:
            fields["growing"] = MappingProxyType(self._growing)
        if self._log:
            fields["log"] = (*run.log, *self._log)[-LOG_LINES:]
        if self._certainty:
            fields["certainty"] = (*run.certainty, *self._certainty)
        return replace(run, **fields, tokens=self._tokens, kept_tokens=self._kept_tokens)

    @property
    def nodes(self) -> Mapping[NodeId, SeenNode]:
        return self._run.nodes if self._nodes is None else self._nodes

    def apply(self, seq: int, event: Event) -> None:
        if (text := said(event)) is not None:
            self._fields["seq"] = seq
            self._log.append(LogLine(seq=seq, kind=type(event).__name__, text=text))
        match event:
            case events.RunStarted():
                self._fields |= {"state": "running", "config": event.config}
            case events.NodesExpanded():
                self._expand(event)
            case events.Progress():
                growing = self._write_growing()
                for node, tokens in event.tokens:
                    if node in self.nodes and self.nodes[node].status == "generating":
                        growing[node] = tokens
            case events.StepCompleted():
                self._complete(event)
            case events.NodeScored():
                self._change(event.node, scores=event.scores, score=event.score)
            case events.NodesMarked():
                for node in event.nodes:
                    self._change(node, status=event.status)
            case events.CertaintyUpdated():
                point = CertaintyPoint(
                    tokens=event.tokens or self._tokens,
                    certainty=event.certainty,
                    answers=event.answers,
                    measures=event.measures,
                )
                self._certainty.append(point)
            case events.Probed():
                pass  # in the log; its tokens are no part of the tree
            case events.EarlyExit():
                self._fields["exit"] = Exit(
                    tokens=event.tokens or self._tokens, reason=event.reason
                )
            case events.EngineRestarted():
                self._fields["note"] = said(event)
            case events.KvSplitChanged() | events.Offloaded() | events.Restored():
                pass  # in the log: they are of the engines, not of the tree
            case events.RunFinished():
                self._end("finished", result=event.result)
            case events.RunFailed():
                self._end("failed", note=event.error)
            case events.RunCancelled():
                self._end("cancelled", note=event.reason)
            case _:
                assert_never(event)

    def _expand(self, event: events.NodesExpanded) -> None:
        nodes = self._write_nodes()
        if self._children is None:
            self._children = dict(self._run.children)
        made = tuple(node for node, _, _ in event.children if node not in nodes)
        self._children[event.parent] = (*self._children.get(event.parent, ()), *made)
        for node, index, _ in event.children:
            if node in made:
                nodes[node] = SeenNode(id=node, parent=event.parent, index=index, depth=event.depth)
                self._fields["latest"] = node

    def _complete(self, event: events.StepCompleted) -> None:
        if event.node in self.nodes:
            self._tokens += len(event.token_ids) - self.nodes[event.node].tokens
        self._change(
            event.node,
            tokens=len(event.token_ids),
            text=event.text,
            finish=event.finish,
            status="generated",
        )

    def _change(self, node: NodeId, **fields: Any) -> None:
        before = self.nodes.get(node)
        if before is None:
            return
        after = replace(before, **fields)
        self._write_nodes()[node] = after
        self._kept_tokens += _kept(after) - _kept(before)
        if after.status != "generating":
            self._write_growing().pop(node, None)
        if node != ROOT and "status" not in fields:
            self._fields["latest"] = node

    def _end(self, state: str, **fields: Any) -> None:
        self._fields |= {"state": state, **fields}
        self._write_growing().clear()

    def _write_nodes(self) -> dict[NodeId, SeenNode]:
        if self._nodes is None:
            self._nodes = dict(self._run.nodes)
        return self._nodes

    def _write_growing(self) -> dict[NodeId, int]:
        if self._growing is None:
            self._growing = dict(self._run.growing)
        return self._growing


def _kept(node: SeenNode) -> int:
    return node.tokens if node.status in KEPT else 0


def thresholds_of(config: Mapping[str, Any]) -> Mapping[str, float]:
    """The thresholds that a run's configuration names, wherever in it they stand: a table from
    measure to value, or pairs (`least`)."""
    for key, value in config.items():
        if key == "thresholds":
            pairs = value.get("least", value) if isinstance(value, Mapping) else value
            table = dict(pairs) if isinstance(pairs, Mapping | list | tuple) else {}
            return {str(k): float(v) for k, v in table.items() if isinstance(v, int | float)}
        if isinstance(value, Mapping) and (found := thresholds_of(value)):
            return found
    return {}
