"""The rules that a calibration tries: a policy on a grid of what its runs have shown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

from flashedge.certainty.replay import Spent, Trace
from flashedge.certainty.rules import Rule
from flashedge.certainty.skyline import Skyline

MAX_DETECTS = 12
MAX_FIRST = 16  # thresholds of the first measure
MAX_OTHER = 6  # of each further one
MAX_LENGTHS = 16
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What is tried; it is made of checkpoints alone and knows no answer.

    detects: progress_values; measures: (name, thresholds) of each, the first one always in force.
    """

    detects: tuple[int, ...]
    measures: tuple[tuple[str, tuple[float, ...]], ...]

    @classmethod
    def over(cls, traces: Sequence[Trace], measures: Sequence[str]) -> Grid:
        """Knobs at which some run could have been stopped, and values that its checkpoints had;
        where there are many, evenly spread ones, the least and the greatest among them."""
        checkpoints = [r for trace in traces for r in trace.checkpoints[:-1]]
        found = []
        for i, name in enumerate(measures):
            seen = {_floor(r.measures[name]) for r in checkpoints if name in r.measures}
            if i == 0:
                found.append((name, _spread(sorted({*seen, 1.0}), MAX_FIRST)))
            elif seen:
                found.append((name, _spread(sorted(seen), MAX_OTHER)))
        progress_values = _spread(sorted({r.progress for r in checkpoints}), MAX_DETECTS)
        return cls(detects=progress_values, measures=tuple(found))

    def rules(self, policy: str, traces: Sequence[Trace]) -> Iterator[Rule]:
        """All rules of a policy; the curves are fitted to `traces`, which know their answers."""
        first, least = self.measures[0]
        named = ((first, 0.0),)
        for detect in self.detects:
            if policy == "length":
                spent = {at.tokens for t in traces if (at := ended_at(t, detect)) is not None}
                for most in _spread(sorted(spent), MAX_LENGTHS):
                    yield Rule(policy=policy, detect=detect, thresholds=named, max_tokens=most)
            elif policy.endswith("_curve"):
                curve = Skyline.fitted(needs(traces, detect, first)).steps
                if curve:
                    yield Rule(policy=policy, detect=detect, thresholds=named, curve=curve)
            else:
                for value, others in product(least, self._others()):
                    thresholds = ((first, value), *others)
                    yield Rule(policy=policy, detect=detect, thresholds=thresholds)

    def _others(self) -> list[tuple[tuple[str, float], ...]]:
        """Every choice of a threshold, or none, for each measure but the first."""
        found: list[tuple[tuple[str, float], ...]] = [()]
        for name, values in self.measures[1:]:
            found += [(*met, (name, value)) for met in found for value in values]
        return found


def ended_at(trace: Trace, progress: int) -> Spent | None:
    """What the run would have been with `progress` for its cap; None: it never came there."""
    at = next(
        (i for i, checkpoint in enumerate(trace.checkpoints) if checkpoint.progress >= progress),
        None,
    )
    return None if at is None else trace.stops[at]


def needs(traces: Iterable[Trace], detect: int, measure: str) -> tuple[tuple[float, int], ...]:
    """(certainty at the detection step, progress needed) of each run that ended right."""
    found = []
    for trace in traces:
        checkpoint = next((r for r in trace.checkpoints if r.progress >= detect), None)
        need = needed(trace)
        if checkpoint is not None and need is not None:
            found.append((checkpoint.measures.get(measure, 0.0), need))
    return tuple(found)


def needed(trace: Trace) -> int | None:
    """The progress from which on the run's answer was right for good; None: it ended wrong."""
    if not trace.whole.right or not trace.checkpoints:
        return None
    for checkpoint, stop in zip(reversed(trace.checkpoints), reversed(trace.stops), strict=True):
        if not stop.right:
            return min(trace.cap, checkpoint.progress + 1)
    return trace.checkpoints[0].progress


def _floor(value: float) -> float:
    """To four digits and never up, so that what had the value still meets it."""
    return math.floor(value * 1e4) / 1e4


def _spread(values: Sequence[T], most: int) -> tuple[T, ...]:
    """At most so many of the values, evenly spread, the first and the last among them."""
    if len(values) <= most:
        return tuple(values)
    return tuple(values[round(i * (len(values) - 1) / (most - 1))] for i in range(most))
