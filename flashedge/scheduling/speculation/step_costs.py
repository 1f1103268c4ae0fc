"""Which drafted rows are worth their time, by what steps took so far.

A step's time is taken as base + sequences * per_sequence + drafted rows * per_draft, and as
`drafting` more if it has any such row. The four are fitted to the last steps. Of the drafted rows
those are computed with which the step draws most tokens a second. Ours.

Steps of one size without drafts tell nothing of a row's cost. So a few rows are computed from time
to time whatever they are thought to cost, and in the first step that can have some.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

KEPT = 0.998
"""How much of a step's weight the next one leaves: some 500 steps count."""
REFIT = 16
"""Steps between two fits."""
PRIOR = 4.0
"""Drafted rows' worth of weight on the assumption that one costs as much as a sequence."""
EXPLORE = 32
"""After so many steps without drafted rows some are computed all the same."""
EXPLORED_CHANCE = 0.25
"""The least chance of a row that is computed to measure its cost."""
MOST_SEQUENCES_ON_CPU = 32
"""On a CPU, steps of more sequences and levels of more requests are not drafted. There the daemon
shares the cores, and what drafts cost it shows in no step. On two cores, with the bundled pair,
drafts made the generator take 19 % longer for 256 paths without this limit, and 5 % if only the
steps had it."""
CLIPPED = 3.0
"""A step counts as no longer than this times the expected time: sometimes the machine is busy."""


@dataclass(slots=True)
class StepCosts:
    _products: NDArray[np.float64] = field(default_factory=lambda: np.zeros((4, 4)))
    _times: NDArray[np.float64] = field(default_factory=lambda: np.zeros(4))
    _noted: int = 0
    _sizes: set[int] = field(default_factory=set)
    """The numbers of rows that a step has had."""
    _undrafted: int = EXPLORE
    """The last steps in a row that had no drafted rows."""
    _fit: tuple[float, ...] = (1.0, 0.1, 0.1, 0.0)
    """base, per_sequence, per_draft and drafting, in seconds. Until some steps are measured only
    their ratios count, which are chosen by hand."""

    def note(self, sequences: int, drafted: int, seconds: float) -> None:
        """Note the time of a step that computed no prompt. The first step of a size may prepare its
        kernels, which takes a second for a large model, so its time does not count."""
        if sequences + drafted not in self._sizes:
            self._sizes.add(sequences + drafted)
            return
        self._undrafted = 0 if drafted else self._undrafted + 1
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
        products = self._products + PRIOR * np.outer(equal, equal) + 1e-3 * np.eye(4)
        free = np.ones(4, dtype=bool)
        while True:  # a negative time is 0, and the others are fitted again without it
            found = np.zeros(4)
            found[free] = np.linalg.solve(products[np.ix_(free, free)], self._times[free])
            if (found >= 0).all():
                return tuple(np.maximum(found, 1e-9).tolist())
            free[np.argmin(found)] = False

    @property
    def undrafted(self) -> tuple[float, float]:
        """base and per_sequence: the expected time of a step of no sequence, and what each adds.
        They have one unit, seconds once steps were measured."""
        return self._fit[0], self._fit[1]

    @property
    def is_exploring(self) -> bool:
        """Whether the next step should have drafted rows to measure what they cost."""
        return self._undrafted >= EXPLORE

    def find_least_chance(self, sequences: int) -> float:
        """The chance of being drawn below which no drafted row is computed."""
        if self.is_exploring:
            return EXPLORED_CHANCE
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


def count_step(
    counters: dict[str, int],
    costs: StepCosts,
    *,
    sequences: int,
    drafted: int,
    computed: int,
    seconds: float,
) -> None:
    """Count a step's drafted rows, and note its time if it has computed no prompt. computed: the
    tokens of the whole step. Other steps say nothing of a row's cost."""
    counters["drafted_tokens"] += drafted
    counters["drafted_steps"] += drafted > 0
    if sequences and computed == sequences + drafted:
        costs.note(sequences, drafted, seconds)


def cut_drafts(
    costs: StepCosts, sequences: int, room: int, drafts: Sequence[Sequence[float]]
) -> list[int]:
    """How many rows of each draft to compute in the next step.

    sequences: of the step, with a draft or without. room: most drafted rows. drafts: the chances of
    each draft's rows, falling.
    """
    rows = [(chance, which) for which, draft in enumerate(drafts) for chance in draft]
    # Stable, and no chance is above the one before it in its draft: drafts stay whole.
    rows.sort(key=lambda row: row[0], reverse=True)
    del rows[max(0, room) :]
    worthy = costs.count_worthy(sequences, [chance for chance, _ in rows])
    if not worthy and costs.is_exploring:
        worthy = max(4, sequences // 4)
    counts = [0] * len(drafts)
    for _, which in rows[:worthy]:
        counts[which] += 1
    return counts
