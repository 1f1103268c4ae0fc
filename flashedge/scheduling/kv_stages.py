"""What a level of a search costs one engine under a given KV memory.

A level: `paths` paths are continued by a step each (generator), then the steps are scored
(verifier). Both engines keep the KV of the live paths and compute only what it lacks. Once the
live paths do not fit together they run in rounds, and what the next level would re-use is evicted
before it comes to it: the paths are passed in the same order each time, the worst there is for
LRU. So the whole live tree is recomputed as soon as one path is too many.

Ref: arXiv 2509.00195 §4.3, Eq. (1), which is the case of no context: docs/adr/0006.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from flashedge.scheduling.cost_curves import BatchTime, CostCurve


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One level. paths: to be continued; context_tokens: mean tokens of a path before the level,
    prompt included; live_tokens: distinct tokens of all contexts together, shared ones counted
    once; step_tokens: mean tokens that a path grows by. Raises ValueError for what can't be."""

    paths: int
    context_tokens: int
    live_tokens: int
    step_tokens: int

    def __post_init__(self) -> None:
        if self.paths < 1 or self.step_tokens < 1 or self.context_tokens < 0:
            raise ValueError(f"no level of a search: {self}")
        if not self.context_tokens <= self.live_tokens <= self.paths * self.context_tokens:
            raise ValueError(f"live_tokens can't be those of {self.paths} contexts: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCost:
    """An engine as the split sees it. max_batch: sequences in one engine step; least_bytes: the
    engine's budget never goes below (one request of full length)."""

    curve: CostCurve
    kv_bytes_per_token: int
    block_tokens: int = 1
    max_batch: int = 1 << 30
    least_bytes: int = 0


class Option(NamedTuple):
    """kept: the live tree's KV outlives the level. A tuple: hundreds are made in a search."""

    kv_bytes: int
    batch: int
    seconds: float
    kept: bool


class Stage:
    """One engine's part of a level. decodes: it generates the step; else it computes it at once."""

    def __init__(self, engine: EngineCost, load: Workload, *, decodes: bool) -> None:
        self.paths = load.paths
        self.max_batch = min(load.paths, engine.max_batch)
        size, context, step = engine.block_tokens, load.context_tokens, load.step_tokens
        token = engine.kv_bytes_per_token
        self._alone = token * _whole(context + step, size)
        self._shared = token * _whole(load.live_tokens, size)
        self._own = token * _whole(step + (size - 1 if context else 0), size)
        self._least = engine.least_bytes
        self._kept = _round(engine.curve, context, step, 0.0, decodes)
        lost = load.live_tokens / load.paths  # each prefix is computed once a level
        self._lost = _round(engine.curve, context, step, lost, decodes)

    def bytes_for(self, batch: int) -> int:
        """KV of `batch` paths with their steps, in whole blocks, shared prefixes once."""
        return max(min(batch * self._alone, self._shared + batch * self._own), self._least)

    def largest_batch(self, kv_bytes: int) -> int:
        """Paths that fit at once, at most all of them; 0 if not even one does."""
        if kv_bytes < self._least:
            return 0
        batch = max(kv_bytes // self._alone, (kv_bytes - self._shared) // self._own)
        return min(batch, self.max_batch)

    def seconds(self, batch: int, *, kept: bool) -> float:
        """Of the whole level, `batch` paths at a time. kept: the live tree's KV is there."""
        return -(-self.paths // batch) * (self._kept if kept else self._lost)(batch)

    def options(self, kv_bytes: int) -> list[Option]:
        """What the engine can do within `kv_bytes`: faster with every byte more, fastest last.

        Looked at is the smallest batch of each number of rounds: any other of as many rounds has
        more work in each, and needs more memory.
        """
        rising = list(self._rounds(kv_bytes))[::-1]
        whole = self.bytes_for(self.paths)
        if whole <= kv_bytes:
            seconds = self.seconds(self.max_batch, kept=True)
            rising.append(Option(whole, self.max_batch, seconds, True))
        found: list[Option] = []
        best_s = math.inf
        for option in rising:
            if option.seconds < best_s:
                found.append(option)
                best_s = option.seconds
        return found

    def _rounds(self, kv_bytes: int) -> Iterator[Option]:
        """Falling batches whose KV is lost from one level to the next."""
        paths, lost = self.paths, self._lost
        batch = self.largest_batch(kv_bytes)
        while batch:
            rounds = -(-paths // batch)
            batch = -(-paths // rounds)
            yield Option(self.bytes_for(batch), batch, rounds * lost(batch), False)
            batch -= 1


def _round(curve: CostCurve, context: int, step: int, lost: float, decodes: bool) -> BatchTime:
    """Seconds of one round: a step of each path, and the `lost` tokens of its context again."""
    if not decodes:
        return curve.prefill_at(context - lost, step + lost)
    decode_s = curve.decode_at(context + step / 2)
    if not lost:
        return lambda batch: step * decode_s(batch)
    again_s = curve.prefill_at(context - lost, lost)
    return lambda batch: step * decode_s(batch) + again_s(batch)


def _whole(tokens: int, size: int) -> int:
    return -(-tokens // size) * size
