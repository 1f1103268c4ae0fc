"""A run as a watcher sees it, with words and marks for statuses, and the fold that builds this view
from the run's numbered events, live or stored.

Events give the same view whether they are folded at once or in chunks. Progress only changes
`growing` and `tails`, which are empty when the run is over. So a stored run, which has no Progress,
ends in the same view as a live one.
"""

import heapq
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from types import MappingProxyType, SimpleNamespace
from typing import Any, assert_never

from flashedge import events
from flashedge.client.event_line import FEW_SCORES, EventLine, describe, find_category, tally_score
from flashedge.events import Event, Progress
from flashedge.types import NodeId

Numbered = tuple[int, Event]
"""An event and its number in the run, from 1 on."""

LOG_LINES = 400
"""Most lines of each kind in `RunView.log`. Chosen by hand: ten screens to scroll through, and
ten times as many would be slow to merge for each frame."""

OVER = frozenset({"finished", "failed", "cancelled", "interrupted"})

ROOT = NodeId(0)
CUT = "cut"
"""Status of a node that still generated when its run ended, and kind of one that a token limit
ended. The search itself has no such status."""

KEPT = frozenset({"active", "complete"})
"""Statuses of nodes that the search may continue or answer with."""

DROPPED = frozenset({"pruned", "duplicate", "cancelled", CUT})
"""Statuses of nodes that the search won't continue or answer with."""

_STATUSES = {
    "generating": ("…", "it generates"),
    "generated": ("·", "not judged yet"),
    "active": ("●", "kept"),
    "pruned": ("✗", "the search did not continue it"),
    "duplicate": ("≡", "the same text as a sibling"),
    "complete": ("✓", "the path ends here"),
    "cancelled": ("–", "the search had no more use for it"),
    CUT: ("≈", "stopped by a token limit, low confidence or the run's end before it had an answer"),
}
MARKS: Mapping[str, str] = {status: mark for status, (mark, _) in _STATUSES.items()}
MEANINGS: Mapping[str, str] = {status: meaning for status, (_, meaning) in _STATUSES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    id: NodeId
    parent: NodeId | None
    index: int = 0
    """Its number among its parent's children."""
    depth: int = 0
    status: str = "generating"
    """A `search.tree.NodeStatus`, or `CUT`."""
    tokens: int = 0
    """Tokens of the segment. 0 until its end: `RunView.growing` counts them before."""
    text: str = ""
    scores: tuple[float, ...] = ()
    """Scores of the segment's steps, each in [0, 1]."""
    score: float | None = None
    """Score of the whole path down to this node, in [0, 1]. None until it is scored."""
    finish: str = ""
    """The segment's `FinishReason`, empty until its end."""
    answer: str | None = None
    """The answer that the path ends with, as the model wrote it."""
    mean_logprob: float = 0.0
    """Mean log-probability of the segment's tokens."""

    @property
    def kind(self) -> str:
        """The status to show. A path that has ended counts as complete although its level is not
        decided yet, and as `CUT` if it ended before an answer."""
        if self.is_cut:
            return CUT
        return "complete" if self.ends_path else self.status

    @property
    def mark(self) -> str:
        return MARKS.get(self.kind, "?")

    @property
    def is_cut(self) -> bool:
        """Whether a token limit or low confidence ended the path before it had an answer."""
        is_short = self.finish in ("length", "step_limit", "unsure")
        return self.ends_path and is_short and self.answer is None

    @property
    def ends_path(self) -> bool:
        """Whether nothing can follow this node."""
        return self.status == "complete" or (
            self.status == "generated" and self.finish in ("stop", "length", "unsure")
        )


def _build_root() -> Mapping[NodeId, NodeView]:
    return MappingProxyType({ROOT: NodeView(id=ROOT, parent=None, status="active")})


def _build_empty() -> Mapping[Any, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """What a watcher knows of a run."""

    id: str = ""
    state: str = "waiting"
    """waiting, running, finished, failed, cancelled or interrupted."""
    position: int | None = None
    """How many runs start before it. None once it runs, or where that is not known."""
    starts_in_s: float | None = None
    """Seconds until it starts, by the daemon's last estimate. None where there is none."""
    seq: int = 0
    """The number of the last event that was folded, apart from Progress."""
    nodes: Mapping[NodeId, NodeView] = field(default_factory=_build_root)
    children: Mapping[NodeId, tuple[NodeId, ...]] = field(default_factory=_build_empty)
    growing: Mapping[NodeId, int] = field(default_factory=_build_empty)
    """Tokens so far of nodes that generate."""
    tails: Mapping[NodeId, str] = field(default_factory=_build_empty)
    """The end of the text so far of nodes that generate."""
    tokens: int = 0
    """Committed tokens: those of generated segments."""
    kept_tokens: int = 0
    """Those of nodes with a status in `KEPT`."""
    level: int = 0
    """Depth of the newest expansion."""
    certainty: tuple[events.CertaintyUpdated, ...] = ()
    """The measurements so far, each with the tokens of the run at that moment."""
    rollouts: tuple[NodeId, ...] = ()
    """MCTS: the nodes in which rollouts ended, in order."""
    futile_rollouts: int = 0
    """MCTS: further rollouts, which were cut as futile."""
    flights: tuple[tuple[int, NodeId], ...] = ()
    """MCTS: (number, node) of the rollouts in flight, as in `events.RolloutsInFlight`."""
    allowed: tuple[int, int] | None = None
    """Boosted MCTS: (rollouts that the run may have in flight, rollouts that all boosted runs may
    have together, 0 if not known)."""
    boosts: int = 0
    """How often the number of rollouts that the run may have in flight was raised."""
    cancelled_rollouts: int = 0
    """Rollouts that were cancelled because the number that may be in flight was lowered."""
    exit: events.EarlyExit | None = None
    """None unless the run stopped early."""
    config: Mapping[str, Any] = field(default_factory=_build_empty)
    """The request with all defaults (`events.RunStarted`). Empty before the run starts."""
    queue_s: float = 0.0
    result: Mapping[str, Any] | None = None
    """What `flashedge solve --json` prints. None before the run has finished."""
    note: str | None = None
    """The latest news for a user: an error, a restart, an early exit."""
    latest: NodeId | None = None
    """The node that was created or scored last."""
    log: tuple[EventLine, ...] = ()
    """The newest `LOG_LINES` lines about steps, and as many about anything else."""
    event_counts: Mapping[str, int] = field(default_factory=_build_empty)
    """Events so far by the category of their lines."""

    @property
    def over(self) -> bool:
        return self.state in OVER

    @property
    def problem(self) -> str:
        """The last message of the run's conversation. Empty until the run starts."""
        messages = (self.config.get("problem") or {}).get("messages") or ()
        return str(messages[-1].get("content") or "") if messages else ""

    @property
    def all_tokens(self) -> int:
        """Committed tokens and those of nodes that still generate."""
        return self.tokens + sum(self.growing.values())

    @property
    def paths_done(self) -> int:
        return sum(n.ends_path for n in self.nodes.values())

    @property
    def paths_cut(self) -> int:
        return sum(n.is_cut for n in self.nodes.values())

    @property
    def is_distrusted(self) -> bool:
        return (self.result or {}).get("trusted") is False

    @property
    def is_unlikely(self) -> bool:
        return bool((self.result or {}).get("unlikely"))

    @property
    def best(self) -> NodeId | None:
        """The end of the chosen path. Without a choice: the best-scored of the deepest kept nodes
        that have a score."""
        choice = (self.result or {}).get("choice")
        if isinstance(choice, int) and choice in self.nodes:
            return NodeId(choice)
        leaves = (n for n in self.nodes.values() if n.status in KEPT and n.score is not None)
        best = max(leaves, key=lambda n: (n.depth, n.score or 0.0, -n.id), default=None)
        return None if best is None else best.id

    @property
    def chosen(self) -> frozenset[NodeId]:
        """The nodes of the path that the run chose; empty until it has a result."""
        return frozenset() if self.result is None else frozenset(self.path(self.best))

    def path(self, node: NodeId | None) -> tuple[NodeId, ...]:
        """Ids from below the root down to `node`."""
        ids: list[NodeId] = []
        while node is not None and node != ROOT and node in self.nodes:
            ids.append(node)
            node = self.nodes[node].parent
        return tuple(reversed(ids))


_GENERATED = ("tokens", "text", "scores", "score", "finish", "answer", "mean_logprob")
_EMPTIED = MappingProxyType({f.name: f.default for f in fields(NodeView) if f.name in _GENERATED})
"""The fields of a cancelled node, which keeps nothing of its segment."""


def fold(view: RunView, items: Iterable[Numbered]) -> RunView:
    """Return the view after `items`. An event that was folded before changes nothing. Progress
    carries the number of the event before it, and is ignored once a later event was folded."""
    draft = _ViewDraft(view)
    for seq, event in items:
        draft.apply(seq, event)
    return draft.freeze()


def enqueue(
    view: RunView, run: str, position: int | None, starts_in_s: float | None = None
) -> RunView:
    """Note that the daemon accepted the run. position, starts_in_s: see `RunView`."""
    return replace(view, id=run, position=position, starts_in_s=starts_in_s)


def interrupt(view: RunView) -> RunView:
    """Note that the daemon ended before the run did, unless the run is over: no events follow."""
    if view.over:
        return view
    draft = _ViewDraft(view)
    draft.end("interrupted", "the daemon stopped during the run")
    return draft.freeze()


class _ViewDraft:
    """A view that one `fold` changes. Its tables are copied when they are first written."""

    def __init__(self, view: RunView) -> None:
        self._now = SimpleNamespace(**{f.name: getattr(view, f.name) for f in fields(RunView)})
        self._tables: dict[str, dict[Any, Any]] = {}
        self._lines: dict[bool, deque[EventLine]] = {}
        """Lines of the log about steps (True) and anything else (False): apart, so that the many
        about steps don't push out the others."""

    def freeze(self) -> RunView:
        now = self._now
        for name, table in self._tables.items():
            setattr(now, name, MappingProxyType(table))
        if self._lines:
            now.log = tuple(heapq.merge(*self._lines.values(), key=attrgetter("seq")))
        return RunView(**vars(now))

    def _write(self, name: str) -> dict[Any, Any]:
        if name not in self._tables:
            self._tables[name] = dict(getattr(self._now, name))
            setattr(self._now, name, self._tables[name])
        return self._tables[name]

    def apply(self, seq: int, event: Event) -> None:
        now = self._now
        if seq < now.seq or (seq == now.seq and not isinstance(event, Progress)):
            return
        if (text := describe(event)) is not None:
            self._add_line(seq, event, text)
            now.seq = seq
        match event:
            case events.RunStarted():
                now.state, now.position, now.starts_in_s = "running", None, None
                now.config, now.queue_s = event.config, event.queue_s
            case events.NodesExpanded():
                self._expand(event)
            case events.Progress():
                self._grow(event)
            case events.StepCompleted():
                self._change(
                    event.node,
                    tokens=len(event.token_ids),
                    text=event.text,
                    finish=event.finish,
                    answer=event.answer,
                    mean_logprob=sum(event.logprobs) / max(1, len(event.logprobs)),
                    status="generated",
                )
            case events.NodeScored():
                self._change(event.node, scores=event.scores, score=event.score)
                if event.node != ROOT and event.node in now.nodes:
                    now.latest = event.node
            case events.NodesMarked():
                changes = _EMPTIED if event.status == "cancelled" else {}
                for node in event.nodes:
                    self._change(node, status=event.status, **changes)
            case events.RolloutsEnded():
                now.rollouts = (*now.rollouts, *event.nodes)
                now.futile_rollouts += event.futile
            case events.RolloutsAllowed(rollouts=rollouts, of=of):
                now.boosts += rollouts > (now.allowed[0] if now.allowed else 1)
                now.allowed = (rollouts, of)
            case events.RolloutsInFlight(flights=flights, cancelled=cancelled):
                now.flights, now.cancelled_rollouts = flights, cancelled
            case events.CertaintyUpdated():
                point = replace(event, tokens=event.tokens or now.tokens)
                now.certainty = (*now.certainty, point)
            case events.EarlyExit():
                now.exit = replace(event, tokens=event.tokens or now.tokens)
                now.note = text
            case events.EngineRestarted():
                now.note = text
            case events.PromptRead() | events.Probed():
                pass  # only in the log
            case events.KvSplitChanged() | events.Offloaded() | events.Restored():
                pass  # only in the log
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
        """End the run, and cut the nodes that still generate. Without a note the last one stays."""
        now = self._now
        now.state, now.flights = state, ()
        if note is not None:
            now.note = note
        for node in [n.id for n in now.nodes.values() if n.status == "generating"]:
            self._change(node, status=CUT)
        self._write("growing").clear()
        self._write("tails").clear()

    def _add_line(self, seq: int, event: Event, text: str) -> None:
        """Add the event's line to the log. A tally replaces the lines of the scores in it."""
        now, category, counts = self._now, find_category(event), self._write("event_counts")
        counts[category] = counts.get(category, 0) + 1
        if not self._lines:
            for is_step in (True, False):
                found = (line for line in now.log if (line.category == "steps") == is_step)
                self._lines[is_step] = deque(found, maxlen=LOG_LINES)
        lines, tally = self._lines[category == "steps"], None
        if isinstance(event, events.NodeScored) and event.node in now.nodes:
            before = lines[-1].tally if lines and lines[-1].seq == now.seq else None
            tally = tally_score(before, now.nodes[event.node].depth, event.score)
            if tally.scored > FEW_SCORES:
                text = tally.describe()
                for _ in range(FEW_SCORES if tally.scored == FEW_SCORES + 1 else 1):
                    lines.pop()
        lines.append(EventLine(seq=seq, category=category, text=text, tally=tally))

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

    def _change(self, node: NodeId, **changes: Any) -> None:
        now = self._now
        before = now.nodes.get(node)
        if before is None:
            return
        after = self._write("nodes")[node] = replace(before, **changes)
        now.tokens += after.tokens - before.tokens
        now.kept_tokens += _count_kept(after) - _count_kept(before)
        if after.status != "generating":
            self._write("growing").pop(node, None)
            self._write("tails").pop(node, None)


def _count_kept(node: NodeView) -> int:
    return node.tokens if node.status in KEPT else 0


def build_view(result: Mapping[str, Any]) -> RunView:
    """The view of a finished run whose events are not at hand, from its result object."""
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
    point = events.CertaintyUpdated(tokens=tokens, certainty=certainty, answers=answers)
    return RunView(
        id=str(result.get("id") or ""),
        state="finished",
        nodes=MappingProxyType(nodes),
        children=MappingProxyType(children),
        tokens=tokens,
        kept_tokens=sum(_count_kept(n) for n in nodes.values()),
        level=max(n.depth for n in nodes.values()),
        certainty=() if certainty is None else (point,),
        config={k: result[k] for k in ("strategy", "n") if k in result},
        result=result,
    )
