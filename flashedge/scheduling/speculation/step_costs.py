"""Which drafted rows are worth their time, by what steps took so far.

A step's time is taken as base + sequences * per_sequence + drafted rows * per_draft, and as
`drafting` more if it has any such row. The four are fitted to the last steps. Of the drafted rows
those are computed with which the step draws most tokens a second. Ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

KEPT = 0.995
"""How much of a step's weight the next one leaves: some 200 steps count."""
REFIT = 16
"""Steps between two fits."""
PRIOR = 4.0
"""Steps' worth of weight on the assumption that a drafted row costs as much as a sequence."""
CLIPPED = 3.0
"""A step counts as no longer than this times the expected time: sometimes the machine is busy."""


@dataclass(slots=True)
class StepCosts:
    _products: NDArray[np.float64] = field(default_factory=lambda: np.zeros((4, 4)))
    _times: NDArray[np.float64] = field(default_factory=lambda: np.zeros(4))
    _noted: int = 0
    _fit: tuple[float, ...] = (1.0, 0.1, 0.1, 0.0)
    """base, per_sequence, per_draft and drafting, in seconds. Until some steps are measured only
    their ratios count, which are chosen by hand."""

    def note(self, sequences: int, drafted: int, seconds: float) -> None:
        """Note the time of a step that computed no prompt."""
        row = np.array([1.0, sequences, drafted, drafted > 0])
        if self._noted >= REFIT:
            seconds = min(seconds, CLIPPED * float(row @ np.array(self._fit)))
        self._products = self._products * KEPT + np.outer(row, row)
        self._times = self._times * KEPT + row * seconds
        self._noted += 1
        if self._noted % REFIT == 0:
            self._fit = self._solve()

    def _solve(self) -> tuple[float, ...]:
        equal = np.array([0.0, 1.0, -1.0, 0.0])  # per_sequence equals per_draft
        size = self._products[1, 1] / self._products[0, 0]
        products = self._products + PRIOR * size * np.outer(equal, equal) + 1e-3 * np.eye(4)
        return tuple(np.maximum(np.linalg.solve(products, self._times), 1e-9).tolist())

    def find_least_chance(self, sequences: int) -> float:
        """The chance of being drawn below which no drafted row is worth its time."""
        base, per_sequence, per_draft, _ = self._fit
        return per_draft * sequences / (base + sequences * per_sequence)

    def count_worthy(self, sequences: int, chances: Sequence[float]) -> int:
        """How many of the drafted rows to compute. chances: (rows,) of being drawn, falling."""
        base, per_sequence, per_draft, drafting = self._fit
        alone_s = base + sequences * per_sequence
        best, rows, tokens = sequences / alone_s, 0, float(sequences)
        for count, chance in enumerate(chances, 1):
            tokens += chance
            if (rate := tokens / (alone_s + drafting + count * per_draft)) > best:
                best, rows = rate, count
        return rows
