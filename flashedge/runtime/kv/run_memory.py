"""A run's part in the KV memory: the load that it is, what it is told, what its record says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flashedge.events import Event, KvSplitChanged, Offloaded
from flashedge.runtime.kv.level_watch import LevelWatch
from flashedge.scheduling.kv.loads import load_of
from flashedge.scheduling.kv.split import KvSplit
from flashedge.scheduling.kv.stages import Workload
from flashedge.search.base import Expand, Search
from flashedge.search.tree import Tree


class RunMemory:
    """One run's part in it."""

    def __init__(
        self, changed: Callable[[], None], emit: Callable[[Event], None], *, baseline: bool
    ) -> None:
        """changed: to be called when the load is another."""
        self.baseline = baseline
        self.load: Workload | None = None
        self._changed = changed
        self._emit = emit
        self._split: KvSplit | None = None
        self._curves: str | None = None
        self._counts = {"split_moves": 0, "offloads": 0}

    def watched(self, search: Search[Any], prompt_tokens: int) -> Search[Any]:
        """The search, whose levels are taken in."""

        def level(tree: Tree, expansions: tuple[Expand, ...]) -> None:
            self.load = load_of(tree, prompt_tokens, expansions[0].granularity)
            self._changed()

        return LevelWatch(search, level)

    def split_is(self, split: KvSplit, curves: str) -> None:
        last, self._split, self._curves = self._split, split, curves
        if last is not None and same_bytes(last, split):
            return
        self._counts["split_moves"] += last is not None
        self._emit(
            KvSplitChanged(
                generator_bytes=split.generator_bytes,
                verifier_bytes=split.verifier_bytes,
                decode_batch=split.decode_batch,
                prefill_batch=split.prefill_batch,
                offload=split.offload,
                predicted_s=split.seconds,
                curves=curves,
            )
        )

    def tell(self, event: Event) -> None:
        self._counts["offloads"] += isinstance(event, Offloaded)
        self._emit(event)

    @property
    def record(self) -> dict[str, Any]:
        """For the run's result."""
        split = self._split
        return {
            "curves": self._curves,
            "generator_bytes": split and split.generator_bytes,
            "verifier_bytes": split and split.verifier_bytes,
            "offload": split is not None and split.offload,
            **self._counts,
        }


class FixedMemory:
    """The naive twin: budgets stay as they were when the engines started."""

    def watched(self, search: Search[Any], prompt_tokens: int) -> Search[Any]:
        return search

    @property
    def record(self) -> dict[str, Any]:
        return {"curves": None}


def same_bytes(a: KvSplit, b: KvSplit) -> bool:
    """Whether they differ in batches alone, if at all."""
    return (a.generator_bytes, a.verifier_bytes, a.offload) == (
        b.generator_bytes,
        b.verifier_bytes,
        b.offload,
    )
