"""Decide how the KV memory should be divided. Nothing is moved here.

Ref: arXiv 2509.00195 §4.3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from flashedge.errors import ConfigError
from flashedge.scheduling.kv.split import (
    HostLink,
    KvSplit,
    choose_split,
    keep_unless_faster,
    predict_seconds,
    refit_split,
    split_evenly,
)
from flashedge.scheduling.kv.stages import EngineCost, Workload

MEASURED_BYTES = 4 << 20
"""Bytes that must have moved before the link's measured speed replaces its assumed one."""

ForcedSplit = Callable[[Workload | None], KvSplit]
"""Decides instead of the search, for measurements and tests."""


@dataclass(slots=True)
class MoveCosts:
    """What moving KV memory has cost so far."""

    moved_bytes: int = 0
    """Bytes saved to host memory and restored from it."""
    moving_s: float = 0.0
    divisions: int = 0
    """How often the memory was divided anew."""
    dividing_s: float = 0.0

    @property
    def division_s(self) -> float:
        """Mean seconds of a new division."""
        return self.dividing_s / max(1, self.divisions)

    def update_link(self, link: HostLink | None) -> HostLink | None:
        """Replace the link's assumed speed by the measured one, once enough has moved."""
        if link is None or self.moved_bytes < MEASURED_BYTES:
            return link
        return replace(link, bytes_per_s=self.moved_bytes / self.moving_s)


class SplitDecider:
    """Chooses the split of `kv_bytes` between both engines for the load of all runs."""

    def __init__(
        self,
        costs: tuple[EngineCost, EngineCost],
        *,
        kv_bytes: int,
        link: HostLink | None,
        forced: ForcedSplit | None,
    ) -> None:
        """`costs` are of generator and verifier. Without `link` nothing is ever offloaded."""
        self._costs: dict[str, Any] = {"generator": costs[0], "verifier": costs[1]}
        self._kv_bytes = kv_bytes
        self._link = link
        self._forced = forced

    def split_evenly(self) -> KvSplit:
        return split_evenly(self._kv_bytes, **self._costs)

    def decide(
        self, load: Workload, current: KvSplit, costs: MoveCosts, *, may_offload: bool
    ) -> KvSplit:
        """Choose a split for `load`. Keep the bytes of `current` unless a move pays.

        If the memory does not hold one path of each engine, it is divided evenly.
        """
        if self._forced is not None:
            return self._forced(load)
        link = costs.update_link(self._link) if may_offload else None
        try:
            new = choose_split(load, kv_bytes=self._kv_bytes, link=link, **self._costs)
        except ConfigError:
            return self.split_evenly()
        current_s = predict_seconds(current, load, link=link, **self._costs)
        chosen = keep_unless_faster(current, new, last_s=current_s, move_s=costs.division_s)
        return new if chosen is new else refit_split(chosen, load, link=link, **self._costs)
