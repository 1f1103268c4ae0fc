"""A run's part in the KV memory: the load it reports, the events it receives, its record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flashedge.events import Event, KvSplitChanged, Offloaded
from flashedge.scheduling.kv.split import KvSplit
from flashedge.scheduling.kv.stages import Workload, estimate_load
from flashedge.search.base import Command, Expand
from flashedge.search.tree import Tree


class RunMemory:
    """What the KV manager and one run know of each other."""

    def __init__(
        self,
        on_load: Callable[[], None],
        emit: Callable[[Event], None],
        prompt_tokens: int,
        *,
        baseline: bool,
    ) -> None:
        """on_load: called when the run has another load."""
        self.baseline = baseline
        self.load: Workload | None = None
        self._on_load = on_load
        self._emit = emit
        self._prompt_tokens = prompt_tokens
        self._split: KvSplit | None = None
        self._curves: str | None = None
        self._counts = {"split_moves": 0, "offloads": 0}

    def follow(self, tree: Tree, commands: Sequence[Command]) -> None:
        """Called with each turn of the search: a level of steps may begin, which is a new load."""
        steps = [command.granularity for command in commands if isinstance(command, Expand)]
        if steps:
            self.load = estimate_load(tree, self._prompt_tokens, steps[0])
            self._on_load()

    def record_split(self, split: KvSplit, curves: str) -> None:
        """Record the split in effect, and emit an event if its bytes changed."""
        last, self._split, self._curves = self._split, split, curves
        if last is not None and last.has_same_bytes(split):
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

    def emit(self, event: Event) -> None:
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
    """The same for a run without a KV manager: budgets stay as they were at the engines' start."""

    def follow(self, tree: Tree, commands: Sequence[Command]) -> None: ...

    @property
    def record(self) -> dict[str, Any]:
        return {"curves": None}
