"""Chooses the engines and helpers of a run by the switches of the optimizations."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Protocol

from flashedge.answers.grouping import Grader, TextGroups, WordGroups
from flashedge.engine.base import Generator, Verifier
from flashedge.events import Event
from flashedge.optimizations import Optimizations
from flashedge.runtime.kv.manager import (
    CountedGenerator,
    CountedVerifier,
    FixedMemory,
    KvManager,
    RunMemory,
)
from flashedge.scheduling.prefix_order import Order, Paths, order_by_arrival, order_by_sweep
from flashedge.types import Judges

Ordering = Callable[[Paths], Order]
"""Sorts paths, each a sequence of node ids. Returns their positions in the new order."""


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
    """The engines and helpers of one run. Build it with `build_engines`."""

    generator: Generator
    verifier: Verifier
    grader: Grader
    texts: TextGroups = field(default_factory=WordGroups)
    optimizations: Optimizations = field(default_factory=Optimizations)
    judges: Judges = "steps"
    """What one score of the verifier is about."""
    program: str | None = None
    """The key that all requests of the run carry. See `Generator.rank_programs`."""
    client: str = ""
    """Who asked for the run. See `ExtendRequest.client`."""
    order: Ordering | None = None
    """Replaces, in measurements, the order that the switch `prefix_order` chooses."""
    kv_manager: KvManager | None = None
    """Moves the KV memory of both engines. None leaves each engine its own."""

    def switch(self, **switches: bool) -> Engines:
        """Copy with other switches, but with the engines that `build_engines` chose."""
        return replace(self, optimizations=replace(self.optimizations, **switches))

    @property
    def ordering(self) -> Ordering:
        by_switch = order_by_sweep if self.optimizations.prefix_order else order_by_arrival
        return self.order or by_switch

    def join_kv(
        self, emit: Callable[[Event], None], prompt_tokens: int
    ) -> AbstractContextManager[RunMemory | FixedMemory]:
        """Let the run take part in the division of KV memory inside a `with` block. While a run
        without `kv_split` takes part, each engine has half of the memory."""
        if self.kv_manager is None:
            return nullcontext(FixedMemory())
        is_baseline = not self.optimizations.kv_split
        return self.kv_manager.join(emit, prompt_tokens, is_baseline=is_baseline)


def build_engines(
    optimizations: Optimizations,
    twins: TwinEngines,
    *,
    grader: Grader,
    texts: TextGroups | None = None,
    kv_manager: KvManager | None = None,
    judges: Judges = "steps",
) -> Engines:
    """Choose the engines by the switches. Without `texts`, open-ended answers group by words."""
    is_whole_path = not optimizations.suffix_scoring
    is_stock = is_whole_path and not optimizations.speculation  # the stock generator drafts nothing
    generator = twins.stock_generator if is_stock else twins.generator
    verifier = twins.stock_verifier if is_whole_path else twins.verifier
    if kv_manager is not None:
        generator = CountedGenerator(generator, kv_manager)
        verifier = CountedVerifier(verifier, kv_manager)
    return Engines(
        generator=generator,
        verifier=verifier,
        grader=grader,
        texts=texts or WordGroups(),
        optimizations=optimizations,
        kv_manager=kv_manager,
        judges=judges,
    )
