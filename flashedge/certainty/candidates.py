"""The candidates of a calibration: rules on a grid of observed values, and smaller caps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

from flashedge.certainty.replay import Ending, RunTrace, end_at
from flashedge.certainty.rules import Rule
from flashedge.certainty.skyline import Skyline

MAX_DETECTS = 12
MAX_FIRST = 16  # thresholds of the first measure
MAX_OTHER = 6  # thresholds of each further measure
MAX_LENGTHS = 16
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Detection steps and thresholds to try. It depends on checkpoints only, not on answers."""

    detects: tuple[int, ...]
    """Progress values at which some run could have been stopped."""
    measures: tuple[tuple[str, tuple[float, ...]], ...]
    """(name, thresholds) of each measure. The first one is part of every rule."""

    @classmethod
    def build(cls, traces: Sequence[RunTrace], measures: Sequence[str]) -> Grid:
        """Collect the values that occur in the checkpoints.

        Where there are many, keep evenly spread ones with the smallest and the largest.
        """
        checkpoints = [c for trace in traces for c in trace.checkpoints[:-1]]
        found = []
        for i, name in enumerate(measures):
            seen = {_round_down(c.measures[name]) for c in checkpoints if name in c.measures}
            if i == 0:
                found.append((name, _thin_out(sorted({*seen, 1.0}), MAX_FIRST)))
            elif seen:
                found.append((name, _thin_out(sorted(seen), MAX_OTHER)))
        detects = _thin_out(sorted({c.progress for c in checkpoints}), MAX_DETECTS)
        return cls(detects=detects, measures=tuple(found))

    def propose_rules(self, policy: str, traces: Sequence[RunTrace]) -> Iterator[Rule]:
        """Yield all rules of a policy. Curves are fitted to `traces` and their answers."""
        first, least = self.measures[0]
        named = ((first, 0.0),)
        for detect in self.detects:
            if policy == "length":
                spent = {at.tokens for t in traces if (at := end_at(t, detect)) is not None}
                for most in _thin_out(sorted(spent), MAX_LENGTHS):
                    yield Rule(policy=policy, detect=detect, thresholds=named, max_tokens=most)
            elif policy.endswith("_curve"):
                curve = Skyline.fit(list_needs(traces, detect, first)).steps
                if curve:
                    yield Rule(policy=policy, detect=detect, thresholds=named, curve=curve)
            else:
                for value, others in product(least, self._combine_others()):
                    thresholds = ((first, value), *others)
                    yield Rule(policy=policy, detect=detect, thresholds=thresholds)

    def _combine_others(self) -> list[tuple[tuple[str, float], ...]]:
        """List every choice of a threshold, or none, for each measure but the first."""
        found: list[tuple[tuple[str, float], ...]] = [()]
        for name, values in self.measures[1:]:
            found += [(*chosen, (name, value)) for chosen in found for value in values]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallerCap:
    """The even policy with a smaller cap: every run makes the same, smaller progress.

    A policy that watches certainty is only worth having if it beats this candidate, since a user
    gets it by asking for fewer paths. Ref: arXiv 2412.20993 App. F.2 (1).
    """

    cap: int

    def end(self, trace: RunTrace) -> Ending:
        """Return how a run ends at the cap. Nobody probes a run that no policy watches."""
        ending = end_at(trace, self.cap) or trace.whole
        return Ending(right=ending.right, tokens=ending.tokens)


def propose_smaller_caps(traces: Iterable[RunTrace]) -> tuple[SmallerCap, ...]:
    """Return one candidate for each progress at which some run could have been stopped."""
    found = {c.progress for trace in traces for c in trace.checkpoints[:-1]}
    return tuple(SmallerCap(cap=progress) for progress in sorted(found))


def list_needs(
    traces: Iterable[RunTrace], detect: int, measure: str
) -> tuple[tuple[float, int], ...]:
    """Return (certainty at the detection step, progress needed) of each run that ended right."""
    found = []
    for trace in traces:
        checkpoint = next((c for c in trace.checkpoints if c.progress >= detect), None)
        need = find_need(trace)
        if checkpoint is not None and need is not None:
            found.append((checkpoint.measures.get(measure, 0.0), need))
    return tuple(found)


def find_need(trace: RunTrace) -> int | None:
    """Return the progress from which on the run's answer stayed right; None if it ended wrong."""
    if not trace.whole.right or not trace.checkpoints:
        return None
    for checkpoint, stop in zip(reversed(trace.checkpoints), reversed(trace.stops), strict=True):
        if not stop.right:
            return min(trace.cap, checkpoint.progress + 1)
    return trace.checkpoints[0].progress


def _round_down(value: float) -> float:
    """Round to four digits, never up, so that a run with this value still meets it."""
    return math.floor(value * 1e4) / 1e4


def _thin_out(values: Sequence[T], most: int) -> tuple[T, ...]:
    """Keep at most so many values, evenly spread, with the first and the last."""
    if len(values) <= most:
        return tuple(values)
    return tuple(values[round(i * (len(values) - 1) / (most - 1))] for i in range(most))
