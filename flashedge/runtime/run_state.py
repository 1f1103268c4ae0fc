"""What the scheduler of programs, the metrics and boosting know of a run, from its events."""

from dataclasses import dataclass, field, replace

from flashedge import events
from flashedge.runtime.lengths.path_counter import PathCounter
from flashedge.runtime.request.plan import is_boosted
from flashedge.runtime.request.validation import Request
from flashedge.scheduling.rollouts.allocation import RolloutCandidate
from flashedge.search.mcts.exits import Exits
from flashedge.types import NodeId

MOST_ROLLOUTS = 8
"""Most rollouts in flight of one run. With more, most of them descend to the same leaves."""


class RunState:
    def __init__(
        self, run_id: str, spec: Request, *, prompt_tokens: int = 0, arrived_s: float = 0.0
    ) -> None:
        self.id = run_id
        self.spec = spec
        self.paths = PathCounter(sees_progress=True)
        self.rollouts: Rollouts | None = None
        """None for a run that is not boosted."""
        if is_boosted(spec):
            self.rollouts = Rollouts(run_id, spec, prompt_tokens=prompt_tokens, arrived_s=arrived_s)
        self.first_token_s: float | None = None
        """Seconds from the run's start to its first token."""
        self.drawing_s = 0.0
        """Seconds to the last event, from the first token or, before there is one, the start."""
        self.brought_first_token = False
        """Whether the last event was the first with a token."""
        self._started_s: float | None = None

    def observe(self, event: events.Event, now_s: float) -> None:
        """Take an event. Each must come once, in order. now_s: by the clock of `arrived_s`."""
        self.paths.observe(event)
        if self.rollouts is not None:
            self.rollouts.observe(event)
        if isinstance(event, events.RunStarted):
            self._started_s = now_s
        if self._started_s is None:
            return
        running_s = now_s - self._started_s
        self.brought_first_token = self.first_token_s is None and (
            isinstance(event, events.StepCompleted)
            or (isinstance(event, events.Progress) and any(count for _, count in event.tokens))
        )
        if self.brought_first_token:
            self.first_token_s = running_s
        self.drawing_s = running_s - (self.first_token_s or 0.0)


@dataclass(slots=True)
class _Level:
    """The children of one node, while some of them are being generated."""

    open: set[NodeId] = field(default_factory=set)
    longest: int = 0
    """Tokens of the longest finished child."""


class Rollouts:
    """What the allocator of rollouts needs to know of a boosted run."""

    def __init__(
        self,
        key: str,
        spec: Request,
        *,
        prompt_tokens: int,
        arrived_s: float,
        most: int = MOST_ROLLOUTS,
    ) -> None:
        self._n = spec.n
        ends_by_reward = bool(spec.options.get("positive_exit"))
        self._accept = float(spec.options.get("accept", Exits().accept)) if ends_by_reward else None
        """The reward at which the run ends. None if no reward ends it."""
        self._most = most
        self._prompt_tokens = prompt_tokens
        self._best: float | None = None
        self._ended = self._futile = 0
        self._scores: dict[NodeId, float] = {}
        self._lengths: dict[NodeId, int] = {}
        self._parents: dict[NodeId, NodeId] = {}
        self._levels: dict[NodeId, _Level] = {}
        """Levels that are being generated, by their parent."""
        self.level_tokens = self.levels = 0
        """Decode steps of all finished levels, and their number. A level takes as many steps as its
        longest child has tokens."""
        self.candidate = RolloutCandidate(
            key=key,
            arrived_s=arrived_s,
            branching=spec.branching,
            most=max(1, min(most, spec.n)),
            path_tokens=prompt_tokens,
        )
        self.has_changed = False
        """Whether the last event changed the candidate."""

    @property
    def open_sequences(self) -> int:
        return sum(len(level.open) for level in self._levels.values())

    def observe(self, event: events.Event) -> None:
        self.has_changed = False
        match event:
            case events.NodesExpanded(parent=parent, children=children):
                made = {node for node, _, _ in children}
                self._levels.setdefault(parent, _Level()).open.update(made)
                self._parents.update(dict.fromkeys(made, parent))
            case events.StepCompleted(node=node, token_ids=token_ids) if node in self._parents:
                parent, tokens = self._parents[node], len(token_ids)
                self._lengths[node] = self._lengths.get(parent, self._prompt_tokens) + tokens
                self._close(node, tokens)
            case events.NodesMarked(status="cancelled", nodes=nodes):
                for node in nodes:
                    self._close(node)
            case events.NodeScored(node=node, score=score):
                self._scores[node] = score
            case events.RolloutsEnded(nodes=nodes, futile=futile):
                self._end(nodes, futile)
            case _:
                pass

    def _close(self, node: NodeId, tokens: int = 0) -> None:
        parent = self._parents.get(node)
        level = None if parent is None else self._levels.get(parent)
        if parent is None or level is None or node not in level.open:
            return
        level.open.remove(node)
        level.longest = max(level.longest, tokens)
        if not level.open:
            del self._levels[parent]
            self.level_tokens += level.longest
            self.levels += level.longest > 0

    def _end(self, nodes: tuple[NodeId, ...], futile: int) -> None:
        self._ended += len(nodes)
        self._futile += futile
        rewards = [self._scores[node] for node in nodes if node in self._scores]
        self._best = max((r for r in (self._best, *rewards) if r is not None), default=None)
        before = self.candidate
        after = replace(
            before,
            observed=self._ended,
            nearness=self._best / self._accept if self._accept and self._best is not None else None,
            most=max(1, min(self._most, self._n - self._ended - self._futile)),
            path_tokens=max(self._lengths.values(), default=self._prompt_tokens),
        )
        self.candidate, self.has_changed = after, after != before
