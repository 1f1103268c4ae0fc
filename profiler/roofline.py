"""A robust fit of engine steps to a roofline with overhead.

seconds = overhead_s + sequences * sequence_s + max(flops / flops_per_s, bytes / bytes_per_s)

Ref: arXiv 2509.00195 §4.3 (Eq. 1 has the two bounds). We add the overhead and the time of each
sequence, which are most of a step on small models.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashedge.profiler import ProfileError

Array = NDArray[np.float64]

MIN_SAMPLES = 4
"""As many as a fit has terms."""
KNEE = 0.02
"""Relative error from which errors count linearly, not squared (Huber). Chosen by hand: repeated
steps differ by a few per cent: at 0.002 nearly all would count linearly, at 0.2 outliers rule."""
ROUNDS = 12
"""Rounds of reweighting. Chosen by hand: one is plain least squares, a hundred only take longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One engine step that was measured, or the mean of several."""

    phase: str
    sequences: int
    context: float
    """Tokens of KV before the step, per sequence."""
    new: float
    """Tokens computed in the step, per sequence."""
    seconds: float
    flops: float
    """FLOPs of the whole step."""
    bytes: float
    """Bytes that the whole step reads and writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The fitted terms of a phase, by the formula above."""

    overhead_s: float
    sequence_s: float
    flops_per_s: float | None
    """None when no sample was bound by compute."""
    bytes_per_s: float | None
    """None when no sample was bound by memory."""
    median_error: float
    """The median of |predicted / measured - 1| over the samples."""
    p90_error: float
    """The 90th percentile of the same."""
    samples: int
    """How many samples were fitted."""

    def predict_s(self, *, sequences: float, flops: float, bytes: float) -> float:
        """Predict the time of a step that computes `flops` and moves `bytes` in all."""
        compute_s = flops / self.flops_per_s if self.flops_per_s else 0.0
        memory_s = bytes / self.bytes_per_s if self.bytes_per_s else 0.0
        return self.overhead_s + sequences * self.sequence_s + max(compute_s, memory_s)


def fit(samples: Sequence[Sample]) -> Fit:
    """Fit the roofline with the least Huber loss of relative errors, with all terms >= 0.

    Which bound holds for a sample depends only on its intensity, flops / bytes: memory below some
    intensity, compute above. So the samples are split by intensity in all ways that leave no side
    with one sample, and each split is a linear problem. Raises ProfileError for fewer than
    `MIN_SAMPLES`, or for a time that is not positive and finite.
    """
    if len(samples) < MIN_SAMPLES:
        raise ProfileError(f"{len(samples)} steps were measured; a fit needs {MIN_SAMPLES}")
    if any(not 0 < s.seconds < float("inf") for s in samples):
        raise ProfileError("a measured step has no time, or an infinite one")
    ordered = sorted(samples, key=lambda s: s.flops / max(s.bytes, 1.0))
    seconds = np.array([s.seconds for s in ordered])
    sequences = np.array([float(s.sequences) for s in ordered])
    flops = np.array([s.flops for s in ordered])
    moved = np.array([s.bytes for s in ordered])
    if np.ptp(sequences) == 0:
        sequences = np.zeros_like(sequences)  # the overhead includes them
    best_key, best = (np.inf, 0), np.zeros(4)
    for split in range(len(ordered) + 1):
        if 1 in (split, len(ordered) - split):
            continue  # a bound of one sample alone would fit its noise
        by_memory = np.arange(len(ordered)) < split
        columns = np.stack(
            [
                np.ones_like(seconds),
                sequences,
                np.where(by_memory, 0.0, flops),
                np.where(by_memory, moved, 0.0),
            ],
            axis=1,
        )
        terms = _solve_robust(columns, seconds)
        error = np.abs(_predict(terms, sequences, flops, moved) / seconds - 1)
        loss = float(np.where(error < KNEE, error**2 / 2, KNEE * (error - KNEE / 2)).sum())
        key = round(loss, 12), int(np.count_nonzero(terms))  # of equal losses, fewer terms
        if key < best_key:
            best_key, best = key, terms
    errors = np.abs(_predict(best, sequences, flops, moved) / seconds - 1)
    overhead_s, sequence_s, per_flop, per_byte = (float(t) for t in best)
    return Fit(
        overhead_s=overhead_s,
        sequence_s=sequence_s,
        flops_per_s=1 / per_flop if per_flop > 0 else None,
        bytes_per_s=1 / per_byte if per_byte > 0 else None,
        median_error=float(np.median(errors)),
        p90_error=float(np.quantile(errors, 0.9)),
        samples=len(ordered),
    )


def _predict(terms: Array, sequences: Array, flops: Array, moved: Array) -> Array:
    """The seconds of each sample. terms: (4,), in the order of the module's formula, where the
    rates stand as seconds per FLOP and per byte."""
    bound: Array = np.maximum(flops * terms[2], moved * terms[3])
    predicted: Array = terms[0] + sequences * terms[1] + bound
    return predicted


def _solve_robust(columns: Array, seconds: Array) -> Array:
    """The terms >= 0 of the least Huber loss, by reweighting. columns: (samples, 4), what each term
    is multiplied with; returns (4,)."""
    from scipy.optimize import nnls

    relative = columns / seconds[:, None]
    scale = np.sqrt((relative**2).mean(axis=0))
    scale[scale == 0] = 1.0  # a term that no sample has stays 0
    weights = np.ones(len(seconds))
    for _ in range(ROUNDS):
        root = np.sqrt(weights)
        terms: Array = nnls(relative / scale * root[:, None], root)[0] / scale
        weights = KNEE / np.maximum(np.abs(relative @ terms - 1), KNEE)
    return terms
