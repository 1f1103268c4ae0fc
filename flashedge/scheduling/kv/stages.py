"""What a level of a search costs one engine under a given KV memory.

A level: `paths` paths are continued by a step each (generator), then the steps are scored
(verifier). Both engines keep the KV of the live paths and compute only what it lacks. Paths come in
prefix order, so one after another adds to the first one's context what it does not share with its
neighbour. Once the live paths do not fit together they run in rounds, and of what the next level
would re-use there is what the last round left: the level's order turns, so that is used first, and
the rest is computed again.

Ref: arXiv 2509.00195 §4.3, Eq. (1), which is the case of no context: docs/adr/0006.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from flashedge.scheduling.costs.curves import CostCurve


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


RoundTimes = Callable[[int], tuple[float, float]]
"""Paths at once -> seconds of a round with all of the live tree's KV there, and with none of it."""


class Option(NamedTuple):
    """From `kv_bytes` on, `batch` paths fit at once. kept_s, lost_s: seconds of the level at the
    best with all of the live tree's KV there and with none of it, by batches up to that one. A
    tuple: hundreds are made in a search."""

    kv_bytes: int
    batch: int
    kept_s: float
    lost_s: float


class Stage:
    """One engine's part of a level. decodes: it generates the step; else it computes it at once.

    one, whole: bytes in which one path, all paths fit with their steps; round_s: see `RoundTimes`.
    """

    def __init__(self, engine: EngineCost, load: Workload, *, decodes: bool) -> None:
        self.paths = load.paths
        self.max_batch = min(load.paths, engine.max_batch)
        size, context, step = engine.block_tokens, load.context_tokens, load.step_tokens
        others = load.live_tokens - context  # what the paths after the first add to its context
        # a step begins and ends within a block: half of one each, on average
        own = step + size - 1 if context else _whole(step, size)
        self._one = engine.kv_bytes_per_token * _whole(context + step, size)
        self._next = engine.kv_bytes_per_token * (own + -(-others // max(1, load.paths - 1)))
        self._least = engine.least_bytes
        lost = load.live_tokens / load.paths  # each prefix is computed once a level
        self.round_s = (_decoding if decodes else _scoring)(engine.curve, context, step, lost)
        self.one, self.whole = self.bytes_for(1), self.bytes_for(self.paths)

    def bytes_for(self, batch: int) -> int:
        """KV of `batch` neighbours in prefix order, with their steps: the first in whole blocks, of
        the others what they need on average."""
        return max(self._one + (batch - 1) * self._next, self._least)

    def largest_batch(self, kv_bytes: int) -> int:
        """Paths that fit at once, at most all of them; 0 if not even one does."""
        if kv_bytes < self.one:
            return 0
        return min(1 + (kv_bytes - self._one) // self._next, self.max_batch)

    def missing(self, kv_bytes: int) -> float:
        """Share of the live tree's KV that is gone when its turn comes: all where one path fits."""
        if kv_bytes >= self.whole:
            return 0.0
        rest = (self.paths - 1) * self._next
        return (self.whole - kv_bytes) / rest

    def options(self, kv_bytes: int) -> list[Option]:
        """What the engine can do within `kv_bytes`, by rising memory; times fall, or stay.

        Looked at is the smallest batch of each number of rounds: any other of as many rounds has
        more work in each, and needs more memory.
        """
        found: list[Option] = []
        least_kept_s = least_lost_s = math.inf
        for rounds, batch in reversed(self._rounds(kv_bytes)):
            kept_s, lost_s = self.round_s(batch)
            kept_s, lost_s = rounds * kept_s, rounds * lost_s
            if kept_s < least_kept_s or lost_s < least_lost_s:
                least_kept_s, least_lost_s = min(kept_s, least_kept_s), min(lost_s, least_lost_s)
                found.append(Option(self.bytes_for(batch), batch, least_kept_s, least_lost_s))
        return found

    def _rounds(self, kv_bytes: int) -> list[tuple[int, int]]:
        """(rounds, paths in each), rising rounds, falling batches down to one."""
        found, paths = [], self.paths
        batch = self.largest_batch(kv_bytes)
        while batch:
            rounds = -(-paths // batch)
            batch = -(-paths // rounds)
            found.append((rounds, batch))
            batch -= 1
        return found


def _decoding(curve: CostCurve, context: int, step: int, lost: float) -> RoundTimes:
    """A step of each path; what is lost of its context is computed before."""
    decode_s = curve.decode_at(context + step / 2)
    again_s = curve.prefill_at(context - lost, lost) if lost else _nothing

    def seconds(batch: int) -> tuple[float, float]:
        kept_s = step * decode_s(batch)
        return kept_s, kept_s + again_s(batch)

    return seconds


def _scoring(curve: CostCurve, context: int, step: int, lost: float) -> RoundTimes:
    """A step of each path at once, together with what is lost of its context."""
    kept_s, lost_s = curve.prefill_at(context, step), curve.prefill_at(context - lost, step + lost)
    return lambda batch: (kept_s(batch), lost_s(batch))


def _nothing(batch: int) -> float:
    return 0.0


def _whole(tokens: int, size: int) -> int:
    return -(-tokens // size) * size
