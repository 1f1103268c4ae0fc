"""What a run works with, built from the switches of the optimizations."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Protocol

from flashedge.answers.grouping import Grader, TextGroups, WordGroups
from flashedge.engine.base import Generator, Verifier
from flashedge.events import Event
from flashedge.optimizations import Optimizations
from flashedge.runtime.drive.ordering import Ordering
from flashedge.runtime.kv.manager import KvManager
from flashedge.runtime.kv.run_memory import FixedMemory, RunMemory
from flashedge.scheduling.prefix_order import arrival_order, sweep_order
from flashedge.types import Judges


class TwinEngines(Protocol):
    """Both engines of a pair and their stock twins."""

    @property
    def generator(self) -> Generator: ...
    @property
    def verifier(self) -> Verifier: ...
    @property
    def stock_generator(self) -> Generator: ...
    @property
    def stock_verifier(self) -> Verifier: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """What one run works with. Build it with `build_engines`."""

    generator: Generator
    verifier: Verifier
    grader: Grader
    texts: TextGroups = field(default_factory=WordGroups)
    optimizations: Optimizations = field(default_factory=Optimizations)

    judges: Judges = "steps"
    """What one score of the verifier is about."""

    program: str | None = None
    """The key that all requests of the run carry. See `Generator.rank_programs`."""

    order: Ordering | None = None
    """Submits levels in this order instead of the one that `prefix_order` chooses. For
    measurements."""

    kv_manager: KvManager | None = None
    """Moves the KV memory of both engines. None leaves each engine its own."""

    def switch(self, **switches: bool) -> Engines:
        """The same engines with some switches changed, any but `suffix_scoring`."""
        return replace(self, optimizations=replace(self.optimizations, **switches))

    @property
    def ordering(self) -> Ordering:
        """Order in which the paths of a level are submitted."""
        by_switch = sweep_order if self.optimizations.prefix_order else arrival_order
        return self.order or by_switch

    def join_kv(
        self, emit: Callable[[Event], None], prompt_tokens: int
    ) -> AbstractContextManager[RunMemory | FixedMemory]:
        """The run's part in the KV memory, for the length of the block. A run without `kv_split`
        gets half of the memory for each engine, and so do the runs beside it."""
        if self.kv_manager is None:
            return nullcontext(FixedMemory())
        return self.kv_manager.join(emit, prompt_tokens, baseline=not self.optimizations.kv_split)


def build_engines(
    optimizations: Optimizations,
    twins: TwinEngines,
    *,
    grader: Grader,
    texts: TextGroups | None = None,
    kv_manager: KvManager | None = None,
    judges: Judges = "steps",
) -> Engines:
    """Build what a run works with. The only place that turns switches into engines.

    texts: what groups open-ended answers. None groups them by their words. judges: see `Engines`.
    """
    is_whole_path = not optimizations.suffix_scoring
    is_stock = is_whole_path and not optimizations.speculation  # the stock generator drafts nothing
    generator = twins.stock_generator if is_stock else twins.generator
    verifier = twins.stock_verifier if is_whole_path else twins.verifier
    if kv_manager is not None:
        generator, verifier = (
            kv_manager.wrap_generator(generator),
            kv_manager.wrap_verifier(verifier),
        )
    return Engines(
        generator=generator,
        verifier=verifier,
        grader=grader,
        texts=texts or WordGroups(),
        optimizations=optimizations,
        kv_manager=kv_manager,
        judges=judges,
    )
