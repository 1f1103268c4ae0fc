"""Programs with their work in arrays, so that one expression scores all of them anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from flashedge.scheduling.lengths.distribution import Floats
from flashedge.scheduling.programs.program import Program
from flashedge.scheduling.programs.work import Work


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProgramTable:
    """All arrays are (len(programs),)."""

    programs: Sequence[Program]

    expected: Floats
    """Tokens that are left, as expected."""

    tail: Floats
    """Tokens that are left in the worst tenth of the cases."""

    waited_s: Floats
    """Since the arrival."""

    @classmethod
    def build(cls, programs: Sequence[Program], works: Mapping[str, Work], now_s: float) -> Self:
        """works: by key."""
        found = [works[program.key] for program in programs]
        arrived_s = np.array([program.arrived_s for program in programs])
        return cls(
            programs=programs,
            expected=np.array([work.expected for work in found]),
            tail=np.array([work.tail for work in found]),
            waited_s=np.maximum(now_s - arrived_s, 0.0),
        )
