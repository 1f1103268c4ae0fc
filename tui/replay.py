"""A stored run played again, at a multiple of its own speed. Pure: time is an argument.

The store keeps no times, so the run's duration is spread over its events in proportion to the
tokens of each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from flashedge.client.run_fold import Numbered
from flashedge.events import RunFinished, StepCompleted

SPEEDS = (1, 4, 16)
_EVENT_S = 0.02  # where a run's duration is not known
_OTHER_WEIGHT = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    run: str
    items: tuple[Numbered, ...]
    offsets_s: tuple[float, ...]
    """When each item is due, from the start."""
    speed: int = SPEEDS[0]
    at_s: float = 0.0
    due: int = 0
    """Index of the next item."""

    @property
    def over(self) -> bool:
        return self.due >= len(self.items)

    @property
    def total_s(self) -> float:
        return self.offsets_s[-1] if self.offsets_s else 0.0


def build_replay(run: str, items: Sequence[Numbered]) -> Replay:
    weights = [
        float(len(event.token_ids)) if isinstance(event, StepCompleted) else _OTHER_WEIGHT
        for _, event in items
    ]
    total = sum(weights) or 1.0
    length_s = _duration_s(items)
    offsets = tuple(length_s * done / total for done in accumulate(weights))
    return Replay(run=run, items=tuple(items), offsets_s=offsets)


def advance(replay: Replay, elapsed_s: float) -> tuple[Replay, tuple[Numbered, ...]]:
    """The replay `elapsed_s` of the watcher's time later, and the events due by then."""
    at_s = min(replay.at_s + elapsed_s * replay.speed, replay.total_s)
    due = replay.due
    while due < len(replay.items) and replay.offsets_s[due] <= at_s:
        due += 1
    return replace(replay, at_s=at_s, due=due), replay.items[replay.due : due]


def speed_up(replay: Replay) -> Replay:
    return replace(replay, speed=SPEEDS[(SPEEDS.index(replay.speed) + 1) % len(SPEEDS)])


def _duration_s(items: Sequence[Numbered]) -> float:
    last = items[-1][1] if items else None
    timing = last.result.get("timing") or {} if isinstance(last, RunFinished) else {}
    duration_s = float(timing.get("total_s") or 0.0) - float(timing.get("queue_s") or 0.0)
    return duration_s if duration_s > 0 else _EVENT_S * len(items)
