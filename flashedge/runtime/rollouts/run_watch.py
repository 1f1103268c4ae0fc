"""What boosting knows of one run: a fold over its events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flashedge.events import (
    Event,
    NodeScored,
    NodesExpanded,
    NodesMarked,
    RolloutsEnded,
    StepCompleted,
)
from flashedge.runtime.request.plan import is_boosted
from flashedge.runtime.request.request import Request
from flashedge.scheduling.rollouts.contender import Contender
from flashedge.search.mcts.exits import Exits
from flashedge.types import NodeId

MOST = 8
"""Rollouts of one run at most. With more, most of them descend to the same leaves."""


def watch_run(
    run_id: str, spec: Request, *, prompt_tokens: int, arrived_s: float
) -> RunWatch | None:
    """What boosting follows of a run. None for a run that is not boosted."""
    if not is_boosted(spec):
        return None
    return RunWatch(
        run_id,
        arrived_s=arrived_s,
        n=spec.n,
        branching=spec.branching,
        prompt_tokens=prompt_tokens,
        accept=find_accept(spec),
    )


def find_accept(spec: Request) -> float | None:
    """The reward at which a run ends early. None where no reward ends it."""
    if not spec.options.get("positive_exit"):
        return None
    return float(spec.options.get("accept", Exits().accept))


class RunWatch:
    """Follows the rollouts of a run."""

    def __init__(
        self,
        key: str,
        *,
        arrived_s: float,
        n: int,
        branching: int,
        prompt_tokens: int,
        accept: float | None = None,
        most: int = MOST,
    ) -> None:
        """n: rollouts of the run; accept: the reward at which it ends early; most: rollouts that it
        may have in flight."""
        self._n = n
        self._accept = accept
        self._most = most
        self._prompt_tokens = prompt_tokens
        self._best: float | None = None
        self._ended = self._futile = 0
        self._scores: dict[NodeId, float] = {}
        self._lengths: dict[NodeId, int] = {}
        self._parents: dict[NodeId, NodeId] = {}
        self._open: dict[NodeId, set[NodeId]] = {}
        """Children that are being generated, by their parent."""
        self._longest: dict[NodeId, int] = {}
        """Tokens of the longest finished child of these parents."""
        self._levels = self._level_tokens = 0
        self.contender = Contender(
            key=key,
            arrived_s=arrived_s,
            branching=branching,
            most=max(1, min(most, n)),
            path_tokens=prompt_tokens,
        )

    @property
    def open_sequences(self) -> int:
        """Requests of the run to the generator."""
        return sum(map(len, self._open.values()))

    @property
    def level_tokens(self) -> tuple[int, int]:
        """Decode steps of all finished levels together, and how many levels that were. A level
        takes as many steps as its longest child has tokens."""
        return self._level_tokens, self._levels

    def observe(self, event: Event) -> Mapping[str, Any]:
        """Follow the run. Returns what changes of its contender for which rollouts may have to be
        divided anew: empty unless a rollout ended."""
        match event:
            case NodesExpanded(parent=parent, children=children):
                made = {node for node, _, _ in children}
                self._open.setdefault(parent, set()).update(made)
                self._parents.update(dict.fromkeys(made, parent))
            case StepCompleted(node=node, token_ids=token_ids):
                self._finish(node, len(token_ids))
            case NodesMarked(status="cancelled", nodes=nodes):
                for node in nodes:
                    self._close(node)
            case NodeScored(node=node, score=score):
                self._scores[node] = score
            case RolloutsEnded(nodes=nodes, futile=futile):
                return self._end(nodes, futile)
            case _:
                pass
        return {}

    def _finish(self, node: NodeId, tokens: int) -> None:
        parent = self._parents.get(node)
        if parent is None:
            return
        self._lengths[node] = self._lengths.get(parent, self._prompt_tokens) + tokens
        self._longest[parent] = max(self._longest.get(parent, 0), tokens)
        self._close(node)

    def _close(self, node: NodeId) -> None:
        """A child is no longer generated. After the last one its level is over."""
        parent = self._parents.get(node)
        if parent is None or node not in self._open.get(parent, ()):
            return
        self._open[parent].discard(node)
        if not self._open[parent]:
            del self._open[parent]
            if longest := self._longest.pop(parent, 0):
                self._level_tokens += longest
                self._levels += 1

    def _end(self, nodes: tuple[NodeId, ...], futile: int) -> Mapping[str, Any]:
        self._ended += len(nodes)
        self._futile += futile
        rewards = [self._scores[node] for node in nodes if node in self._scores]
        self._best = max((r for r in (self._best, *rewards) if r is not None), default=None)
        nearness = None
        if self._accept and self._best is not None:
            nearness = self._best / self._accept
        return {
            "observed": self._ended,
            "nearness": nearness,
            "most": max(1, min(self._most, self._n - self._ended - self._futile)),
            "path_tokens": max(self._lengths.values(), default=self._prompt_tokens),
        }
