"""The fold that turns a run's numbered events, live or stored, into a `RunView`. Pure.

Folding in one piece or in any chunks gives the same view: superseded Progress within a chunk is
dropped before it costs anything. Tokens of nodes that still generate are kept apart (`growing`), so
that a stored run, which has no Progress, ends in the very view of the live one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from types import MappingProxyType, SimpleNamespace
from typing import Any, assert_never

from flashedge import events
from flashedge.client.event_line import EventLine, category_of, describe, tally_score
from flashedge.client.run_view import (
    CUT,
    KEPT,
    LOG_LINES,
    ROOT,
    CertaintyPoint,
    ExitPoint,
    NodeView,
    RunView,
)
from flashedge.events import Event, Progress
from flashedge.types import NodeId

Numbered = tuple[int, Event]


def fold(view: RunView, items: Iterable[Numbered]) -> RunView:
    """The view after `items`. Events that were folded before, and of unknown nodes, change nothing.

    Progress carries the number of the event before it: it counts unless a later one was folded.
    """
    draft = _ViewDraft(view)
    for seq, event in coalesce(view.seq, items):
        draft.apply(seq, event)
    return draft.freeze()


def enqueue(
    view: RunView, run: str, position: int | None, starts_in_s: float | None = None
) -> RunView:
    """The daemon accepted the run; `position` runs wait before it (None: it runs)."""
    return replace(view, id=run, position=position, starts_in_s=starts_in_s)


def interrupt(view: RunView) -> RunView:
    """The daemon ended under the run: no more events follow, and growing nodes are cut."""
    if view.over:
        return view
    draft = _ViewDraft(view)
    draft.end("interrupted", note="the daemon stopped during the run")
    return draft.freeze()


def coalesce(seen: int, items: Iterable[Numbered]) -> list[Numbered]:
    """`items` after number `seen`, without token counts that a later Progress repeats."""
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
    counted: set[NodeId] = set()
    quoted: set[NodeId] = set()
    kept: list[Numbered] = []
    for seq, event in reversed(fresh):
        if not isinstance(event, Progress):
            kept.append((seq, event))
            continue
        tokens = tuple((n, t) for n, t in event.tokens if n not in counted)
        tails = tuple((n, t) for n, t in event.tails if n not in quoted)
        counted.update(n for n, _ in tokens)
        quoted.update(n for n, _ in tails)
        if tokens or tails:
            kept.append((seq, Progress(tokens=tokens, tails=tails)))
    return kept[::-1]


class _ViewDraft:
    """What one `fold` changes. Tables are copied when they are first written."""

    def __init__(self, view: RunView) -> None:
        self._now = SimpleNamespace(**{f.name: getattr(view, f.name) for f in fields(RunView)})
        self._tables: dict[str, dict[Any, Any]] = {}
        self._log: list[EventLine] = []
        self._certainty: list[CertaintyPoint] = []

    def freeze(self) -> RunView:
        now = self._now
        for name, table in self._tables.items():
            setattr(now, name, MappingProxyType(table))
        now.log = _trim((*now.log, *self._log)) if self._log else now.log
        now.certainty = (*now.certainty, *self._certainty)
        return RunView(**vars(now))

    def _write(self, name: str) -> dict[Any, Any]:
        if name not in self._tables:
            self._tables[name] = dict(getattr(self._now, name))
            setattr(self._now, name, self._tables[name])
        return self._tables[name]

    def apply(self, seq: int, event: Event) -> None:
        now, text = self._now, describe(event)
        if text is not None:
            self._note(seq, event, text)
        match event:
            case events.RunStarted():
                now.state, now.position, now.starts_in_s = "running", None, None
                now.config, now.queue_s = event.config, event.queue_s
            case events.NodesExpanded():
                self._expand(event)
            case events.Progress():
                self._grow(event)
            case events.StepCompleted():
                self._complete(event)
            case events.NodeScored():
                self._change(event.node, scores=event.scores, score=event.score)
            case events.NodesMarked():
                for node in event.nodes:
                    self._mark(node, event.status)
            case events.RolloutsEnded():
                now.rollouts = (*now.rollouts, *event.nodes)
                now.futile_rollouts += event.futile
            case events.RolloutsAllowed(rollouts=rollouts, of=of):
                now.boosts += rollouts > (now.allowed[0] if now.allowed else 1)
                now.allowed = (rollouts, of)
            case events.RolloutsInFlight(flights=flights, cancelled=cancelled):
                now.flights, now.cancelled_rollouts = flights, cancelled
            case events.CertaintyUpdated(certainty=certainty, answers=answers):
                tokens = event.tokens or now.tokens
                point = CertaintyPoint(tokens=tokens, certainty=certainty, answers=answers)
                self._certainty.append(point)
            case events.EarlyExit():
                now.exit = ExitPoint(tokens=event.tokens or now.tokens, reason=event.reason)
                now.note = text
            case events.EngineRestarted():
                now.note = text
            case events.PromptRead() | events.Probed():
                pass  # in the log only: they don't change the tree
            case events.KvSplitChanged() | events.Offloaded() | events.Restored():
                pass  # likewise
            case events.RunFinished():
                now.result = event.result
                self.end("finished")
            case events.RunFailed():
                self.end("failed", event.error)
            case events.RunCancelled():
                self.end("cancelled", event.reason)
            case _:
                assert_never(event)

    def end(self, state: str, note: str | None = None) -> None:
        """The run is over. Nodes that still generate are cut."""
        now = self._now
        now.state, now.flights, now.note = state, (), now.note if note is None else note
        for node in [n.id for n in now.nodes.values() if n.status == "generating"]:
            self._change(node, status=CUT)
        self._write("growing").clear()
        self._write("tails").clear()

    def _note(self, seq: int, event: Event, text: str) -> None:
        now, category, counts = self._now, category_of(event), self._write("event_counts")
        counts[category] = counts.get(category, 0) + 1
        now.seq = seq
        tally = None
        if isinstance(event, events.NodeScored) and event.node in now.nodes:
            before = (self._log or now.log or (None,))[-1]
            tally = tally_score(before, now.nodes[event.node].depth, event.score)
        kind = type(event).__name__
        self._log.append(EventLine(seq=seq, kind=kind, category=category, text=text, tally=tally))

    def _expand(self, event: events.NodesExpanded) -> None:
        nodes, children = self._write("nodes"), self._write("children")
        new = [(node, index) for node, index, _ in event.children if node not in nodes]
        children[event.parent] = (*children.get(event.parent, ()), *(node for node, _ in new))
        self._now.level = event.depth
        for node, index in new:
            nodes[node] = NodeView(id=node, parent=event.parent, index=index, depth=event.depth)
            self._now.latest = node

    def _grow(self, event: Progress) -> None:
        nodes = self._now.nodes
        for name, pairs in (("growing", event.tokens), ("tails", event.tails)):
            table = self._write(name)
            for node, value in pairs:
                if node in nodes and nodes[node].status == "generating":
                    table[node] = value

    def _complete(self, event: events.StepCompleted) -> None:
        self._change(
            event.node,
            tokens=len(event.token_ids),
            text=event.text,
            finish=event.finish,
            answer=event.answer,
            mean_logprob=sum(event.logprobs) / max(1, len(event.logprobs)),
            status="generated",
        )

    def _mark(self, node: NodeId, status: str) -> None:
        known = self._now.nodes.get(node)
        if status == "cancelled" and known is not None:
            blank = NodeView(
                id=node, status=status, parent=known.parent, index=known.index, depth=known.depth
            )
            self._change(node, **{f.name: getattr(blank, f.name) for f in fields(NodeView)})
        else:
            self._change(node, status=status)

    def _change(self, node: NodeId, **fields: Any) -> None:
        now = self._now
        before = now.nodes.get(node)
        if before is None:
            return
        after = self._write("nodes")[node] = replace(before, **fields)
        now.tokens += after.tokens - before.tokens
        now.kept_tokens += _kept(after) - _kept(before)
        if after.status != "generating":
            self._write("growing").pop(node, None)
            self._write("tails").pop(node, None)
        if node != ROOT and "status" not in fields:
            now.latest = node


def _kept(node: NodeView) -> int:
    return node.tokens if node.status in KEPT else 0


def _trim(log: tuple[EventLine, ...]) -> tuple[EventLine, ...]:
    """The newest lines. Rare ones are not pushed out by the many lines about steps."""
    if len(log) <= LOG_LINES:
        return log
    steps = [line.seq for line in log if line.category == "steps"][-LOG_LINES:]
    others = [line.seq for line in log if line.category != "steps"][-LOG_LINES:]
    kept = {*steps, *others}
    return tuple(line for line in log if line.seq in kept)


def build_view(result: Mapping[str, Any]) -> RunView:
    nodes: dict[NodeId, NodeView] = {}
    children: dict[NodeId, tuple[NodeId, ...]] = {}
    for data in result["tree"]["nodes"]:
        node, parent = NodeId(data["id"]), data["parent"]
        depth = nodes[parent].depth + 1 if parent in nodes else 0
        known = {name: data[name] for name in ("status", "tokens", "text", "score")}
        nodes[node] = NodeView(id=node, parent=parent, depth=depth, **known)
        if parent is not None:
            children[parent] = (*children.get(parent, ()), node)
    certainty = result.get("certainty")
    tokens = sum(n.tokens for n in nodes.values())
    answers = sum(int(v["count"]) for v in result.get("votes") or ())
    point = CertaintyPoint(tokens=tokens, certainty=certainty, answers=answers)
    return RunView(
        id=str(result.get("id") or ""),
        state="finished",
        nodes=MappingProxyType(nodes),
        children=MappingProxyType(children),
        tokens=tokens,
        kept_tokens=sum(_kept(n) for n in nodes.values()),
        level=max(n.depth for n in nodes.values()),
        certainty=() if certainty is None else (point,),
        config={k: result[k] for k in ("strategy", "n") if k in result},
        result=result,
    )
