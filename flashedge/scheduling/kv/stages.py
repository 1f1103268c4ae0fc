"""Estimate what one level of a search costs an engine that has a given amount of KV memory.

In a level the generator continues `paths` paths by one step each; then the verifier scores the
steps. Both engines keep the KV of the live paths and compute only what is missing. Paths run in
prefix order, so each path after the first adds only what it does not share with its neighbour.

If the live paths do not fit together, they run in rounds. The order is reversed at every level, so
that KV of the last round is used while it is in memory. The rest is computed again.

Ref: arXiv 2509.00195 §4.3, Eq. (1), which is the case without context. Departures: docs/adr/0006.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from flashedge.scheduling.costs import CostCurve
from flashedge.search.tree import NodeStatus, Tree
from flashedge.types import Granularity

FIRST_STEP_TOKENS = 64
"""Assumed length of a step before the tree has one. Chosen by hand: 6 would make decoding
look almost free, and 640 would hide the verifier's work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One level of a search. Raises ValueError for impossible figures."""

    paths: int
    context_tokens: int
    """Mean tokens of a path before the level, prompt included."""
    live_tokens: int
    """Distinct tokens of all contexts together: shared prefixes count once."""
    step_tokens: int
    """Mean tokens by which a path grows."""

    def __post_init__(self) -> None:
        if self.paths < 1 or self.step_tokens < 1 or self.context_tokens < 0:
            raise ValueError(f"not a level of a search: {self}")
        if not self.context_tokens <= self.live_tokens <= self.paths * self.context_tokens:
            raise ValueError(f"{self.paths} contexts can't have these live_tokens: {self}")


def estimate_load(tree: Tree, prompt_tokens: int, step: Granularity) -> Workload | None:
    """The load of the nodes that are being generated. None if there are none. A step is expected to
    be as long as the tree's mean step. Before there is one, it is expected to have half of its
    limit where it runs to the path's end, and FIRST_STEP_TOKENS elsewhere."""
    growing = [node for node in tree.nodes.values() if node.status is NodeStatus.GENERATING]
    if not growing:
        return None
    parents = [node.parent for node in growing if node.parent is not None]
    total = sum(prompt_tokens + tree[parent].path_tokens for parent in parents)
    ancestors = {at.id: at for parent in set(parents) for at in tree.path(parent)}
    live = prompt_tokens + sum(node.num_tokens for node in ancestors.values())
    steps = [node.num_tokens for node in tree.nodes.values() if node.segment is not None]
    first = step.max_tokens // 2 if step.to_end else FIRST_STEP_TOKENS
    mean = round(sum(steps) / len(steps)) if steps else first
    return _build_workload(len(growing), total, live, max(1, min(mean, step.max_tokens)))


def combine_loads(loads: Iterable[Workload]) -> Workload | None:
    """Add up runs that share the engines but no KV. None if there is no run."""
    if not (found := list(loads)):
        return None
    paths = sum(load.paths for load in found)
    return _build_workload(
        paths,
        sum(load.paths * load.context_tokens for load in found),
        sum(load.live_tokens for load in found),
        max(1, round(sum(load.paths * load.step_tokens for load in found) / paths)),
    )


def _build_workload(paths: int, total_tokens: int, live_tokens: int, step_tokens: int) -> Workload:
    """`total_tokens` counts shared tokens once per path, `live_tokens` once in all."""
    context = total_tokens // paths
    return Workload(
        paths=paths,
        context_tokens=context,
        live_tokens=max(context, min(live_tokens, paths * context)),
        step_tokens=step_tokens,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCost:
    """What the work of an engine costs in time and KV memory."""

    curve: CostCurve
    kv_bytes_per_token: int
    block_tokens: int = 1
    max_batch: int = 1 << 30
    """Most sequences in one step of the engine."""
    least_bytes: int = 0
    """The smallest budget: KV of one request of full length."""


class BatchChoice(NamedTuple):
    """From `kv_bytes` on, `batch` paths fit at once."""

    kv_bytes: int
    batch: int
    kept_s: float
    """Seconds of the level, with the best batch up to this one, if the live tree's KV was kept."""
    lost_s: float
    """The same, if none of it was kept."""


class Stage:
    """One engine's part of a level: the generator decodes the steps, the verifier prefills them."""

    def __init__(self, engine: EngineCost, load: Workload, *, decodes: bool) -> None:
        self.paths = load.paths
        self.max_batch = min(load.paths, engine.max_batch)
        size, context, step = engine.block_tokens, load.context_tokens, load.step_tokens
        others = load.live_tokens - context  # what the paths after the first add to its context
        # A step begins and ends within a block: half a block is unused at each end, on average.
        own = step + size - 1 if context else _round_up(step, size)
        self._one = engine.kv_bytes_per_token * _round_up(context + step, size)
        self._next = engine.kv_bytes_per_token * (own + -(-others // max(1, load.paths - 1)))
        self._least = engine.least_bytes
        lost = load.live_tokens / load.paths  # each prefix is computed once a level
        curve, self._decode_steps = engine.curve, step if decodes else 0
        if decodes:
            self._kept_s = curve.decode_at(context + step / 2)
            self._lost_s = curve.prefill_at(context - lost, lost) if lost else lambda batch: 0.0
        else:
            self._kept_s = curve.prefill_at(context, step)
            self._lost_s = curve.prefill_at(context - lost, step + lost)
        self.whole_bytes = self.count_bytes(self.paths)
        """Bytes in which all paths fit at once."""

    def count_bytes(self, batch: int) -> int:
        """Count the KV bytes of `batch` neighbours in prefix order, with their steps. The first
        takes whole blocks."""
        return max(self._one + (batch - 1) * self._next, self._least)

    def find_largest_batch(self, kv_bytes: int) -> int:
        """Most paths that fit at once. 0 if not even one does."""
        if kv_bytes < self.count_bytes(1):
            return 0
        return min(1 + (kv_bytes - self._one) // self._next, self.max_batch)

    def estimate_missing(self, kv_bytes: int) -> float:
        """Share of the live tree's KV that was evicted before its reuse. 1 if only one path fits,
        which is the least that `kv_bytes` must hold."""
        if kv_bytes >= self.whole_bytes:
            return 0.0
        return (self.whole_bytes - kv_bytes) / ((self.paths - 1) * self._next)

    def estimate_round(self, batch: int) -> tuple[float, float]:
        """(kept_s, lost_s) of a round: with all of the live tree's KV in memory, and with none."""
        if self._decode_steps:
            kept_s = self._decode_steps * self._kept_s(batch)
            return kept_s, kept_s + self._lost_s(batch)
        return self._kept_s(batch), self._lost_s(batch)

    def list_choices(self, kv_bytes: int) -> list[BatchChoice]:
        """List the batches worth considering, by rising memory and falling time. Each number of
        rounds has only its smallest batch: a larger one does more work in as many rounds."""
        found, most = [], self.find_largest_batch(kv_bytes)
        while most:
            rounds = -(-self.paths // most)
            batch = -(-self.paths // rounds)
            found.append((rounds, batch))
            most = batch - 1
        choices: list[BatchChoice] = []
        least_kept_s = least_lost_s = math.inf
        for rounds, batch in reversed(found):
            kept_s, lost_s = self.estimate_round(batch)
            kept_s, lost_s = rounds * kept_s, rounds * lost_s
            if kept_s < least_kept_s or lost_s < least_lost_s:
                least_kept_s, least_lost_s = min(kept_s, least_kept_s), min(lost_s, least_lost_s)
                needed = self.count_bytes(batch)
                choices.append(BatchChoice(needed, batch, least_kept_s, least_lost_s))
        return choices


def _round_up(tokens: int, size: int) -> int:
    return -(-tokens // size) * size
