"""The boosted runs on one pair, and what was last seen of its engines.

Ref: arXiv 2604.00510 §4.5; the gate that asks for it is ours (`scheduling/rollouts/gate.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from flashedge.engine.base import EngineView
from flashedge.errors import EngineError
from flashedge.runtime.rollouts.run_watch import RunWatch
from flashedge.scheduling.rollouts.board import RolloutBoard
from flashedge.scheduling.rollouts.gate import EngineLoad, Opening
from flashedge.scheduling.rollouts.rollout_cost import LEVEL_TOKENS, RolloutCost

OTHERS_LOOKS = 2
"""Sequences of others count once they are there at so many looks in a row: for a moment an engine
goes on with what a run has cancelled."""
KEPT_SHARE = 0.1
"""Share of an engine's KV and batch that boosting leaves free, for what comes before the next
look."""

Allow = Callable[[int, int], None]
"""Tells a run how many rollouts it may have in flight, and how many all runs may have."""


class BoostedEngines(Protocol):
    """The engines of a pair, as far as boosting looks at them."""

    @property
    def name(self) -> str: ...

    @property
    def rollout_cost(self) -> RolloutCost | None:
        """None where the speed of the device was not measured."""
        ...

    @property
    def max_sequences(self) -> int:
        """Most sequences in one step of the generator."""
        ...

    async def views(self) -> Mapping[str, EngineView]:
        """The load of "generator" and "verifier" now. Raises EngineError."""
        ...


@dataclass(slots=True)
class Station:
    """The boosted runs on one pair, and the last look at its engines."""

    engines: BoostedEngines
    board: RolloutBoard
    recent_s: float
    """Seconds for which a look counts."""
    watches: dict[str, RunWatch] = field(default_factory=dict)
    allow: dict[str, Allow] = field(default_factory=dict)
    opening: Opening = field(default=Opening(budget=0, reason="nothing runs"))
    _looked_s: float | None = None
    """When the last look was. None before the first one."""
    _answered: bool = False
    """Whether the engines answered at the last look."""
    _free_kv_tokens: float = 0.0
    """Tokens for which there was room at the last look, beside one rollout of each run."""
    _was_waiting: bool = False
    """Whether a request waited for room in an engine at the last look. Only what waits at two looks
    in a row counts: room may come with the next step."""
    _waits: bool = False
    _others: deque[int] = field(default_factory=lambda: deque(maxlen=OTHERS_LOOKS))
    """Sequences of other runs and requests at the last looks. The fewest count."""

    def add(self, watch: RunWatch, allow: Allow) -> None:
        """Let a run contend."""
        key = watch.contender.key
        self.board.add(watch.contender)
        self.watches[key], self.allow[key] = watch, allow

    def remove(self, key: str) -> None:
        """Forget a run that ended."""
        self.board.remove(key)
        del self.watches[key], self.allow[key]

    @property
    def granted(self) -> int:
        """Rollouts that all runs may have in flight."""
        return sum(self.board.granted.values())

    def is_recent(self, now_s: float) -> bool:
        """Whether the last look still tells what the engines do."""
        return self._looked_s is not None and now_s - self._looked_s <= self.recent_s

    async def look(self, clock: Callable[[], float]) -> None:
        """Ask the engines for their load."""
        try:
            views = await self.engines.views()
        except EngineError:
            views = {}
        now_s = clock()
        most = self.engines.max_sequences
        waiting = any(_has_no_room(view, most) for view in views.values())
        if not self.is_recent(now_s):  # nothing was cancelled a moment ago: one look is enough
            self._others.clear()
            self._was_waiting = waiting
        self._waits, self._was_waiting = waiting and self._was_waiting, waiting
        self._others.append(self._count_others(views))
        self._free_kv_tokens = self._count_free_tokens(views)
        self._answered, self._looked_s = bool(views), now_s

    def find_load(self, now_s: float) -> EngineLoad | None:
        """The load of the engines. None where the last look is too old, or they did not answer."""
        if not (self._answered and self.is_recent(now_s)):
            return None
        return EngineLoad(
            has_waiting=self._waits,
            others=min(self._others, default=0),
            free_kv_tokens=self._free_kv_tokens,
            max_sequences=int(self.engines.max_sequences * (1 - KEPT_SHARE)),
        )

    def find_cost(self, daemon_s: float) -> RolloutCost | None:
        """The cost of a rollout with the lengths of these runs, of which there is at least one.

        daemon_s: seconds that the daemon computes for a token.
        """
        cost = self.engines.rollout_cost
        if cost is None:
            return None
        seen = [watch.level_tokens for watch in self.watches.values()]
        tokens, levels = sum(t for t, _ in seen), sum(count for _, count in seen)
        paths = [run.path_tokens for run in self.board.runs]
        return replace(
            cost,
            context=max(1.0, sum(paths) / len(paths)),
            level_tokens=tokens / levels if levels else LEVEL_TOKENS,
            daemon_s=daemon_s,
        )

    def _count_others(self, views: Mapping[str, EngineView]) -> int:
        """Sequences of the generator beside those of the boosted runs."""
        generator = views.get("generator")
        running = generator.running + generator.waiting if generator is not None else 0
        own = sum(watch.open_sequences for watch in self.watches.values())
        return max(0, running - own)

    def _count_free_tokens(self, views: Mapping[str, EngineView]) -> float:
        """Tokens that fit beside one rollout of each run: what is free, and what boosts hold."""
        free = [
            (view.quota_blocks * (1 - KEPT_SHARE) - view.blocks_used) * view.block_tokens
            for view in views.values()
        ]
        granted = self.board.granted
        boosts = sum(max(0, granted[r.key] - 1) * r.path_tokens for r in self.board.runs)
        return max(0.0, min(free, default=0.0) + boosts)


def _has_no_room(view: EngineView, max_sequences: int) -> bool:
    """Whether requests wait that the next step can't take: its batch or its KV memory is full."""
    is_short = view.quota_blocks * (1 - KEPT_SHARE) < view.blocks_used
    return view.waiting > 0 and (view.running >= max_sequences or is_short)
