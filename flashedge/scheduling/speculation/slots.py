"""Which beams go on past the end of their step while others still generate it. Pure.

A beam that ends its step early leaves its place in the batch empty until the level's slowest beam
is done. Speculation fills that place with what would follow if a finished beam were kept: child 0
is the beam's own stream going on, the others start at the boundary with their own seeds. A token's
noise is a function of (seed, position), so what is drawn ahead is what would be drawn; nothing is
ever filtered or corrected.

Two phases: standard requests first; branches beyond a boundary only while none of them waits and
memory is ample, and never more than the places that finished beams left.

Ref: arXiv 2509.00195 §4.1. Departures: ADR 8.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist

from flashedge.search.seeds import mix64
from flashedge.types import Granularity

TRUNCATION_SPREAD = 0.1  # standard deviation around R; the paper gives none
BEGUN_LATE = 4  # most steps of the next level that may begin with nothing (see `places`)


class BeamState(StrEnum):
    """Where a beam of a level is."""

    GENERATING = "generating"  # its own step, standard work
    FINISHED = "finished"  # at its boundary, nothing drawn beyond it
    SPECULATING = "speculating"  # something beyond its boundary is in the batch
    HELD = "held"  # tokens beyond it are there, none is in the batch: it takes no place


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowUp:
    """What may follow a step that is asked for.

    run: whose step it is; level: counts the run's levels, whose beams wait for each other;
    seeds: of the next children in order, empty when nothing can follow; granularity: of those
    children, its tokens an upper bound; potential: M_i, how many of them may be begun ahead.
    """

    run: str
    level: int
    seeds: tuple[int, ...]
    granularity: Granularity
    potential: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchView:
    """An engine's batch between two steps. running, waiting: standard requests; max_running:
    sequences that one step may hold, speculating ones included; spare_blocks: KV blocks that
    nothing holds; flat_batch: sequences up to which more of them cost a step next to nothing
    (see `flat_batch`), 0 where that is not known."""

    running: int
    waiting: int
    max_running: int
    spare_blocks: int
    flat_batch: int = 0


def potentials(scores: Sequence[float | None], branching: int) -> tuple[int, ...]:
    """M_i = B - j + 1 of each beam, whose score lies in bin C_j of B = branching equal bins between
    the lowest score and the highest; C_1 holds the highest.

    scores: (num_beams,), of the steps before; None (never scored) counts as C_1: nothing speaks
    against that beam.
    """
    known = [score for score in scores if score is not None]
    lowest, highest = min(known, default=0.0), max(known, default=0.0)
    span = highest - lowest

    def potential(score: float | None) -> int:
        if score is None or span == 0:
            return branching
        bins_below_top = int((highest - score) / span * branching)
        return branching - min(bins_below_top, branching - 1)

    return tuple(map(potential, scores))


def places(
    view: BatchView, left: int, speculating: int, *, beams: float = 0, wanted: int = 0
) -> int:
    """How many branches may be in the batch: none in phase 1, else the places that finished beams
    left, so that the batch stays as large as it was. Where it is known up to which batch steps are
    flat, as many as cost next to nothing: more than those places, or fewer; and none where so few
    of the wanted ones have a place that more than a handful of the next steps would begin with
    nothing: a level is as long as its longest step, which the others' head start does not shorten.

    left: places left by finished beams of levels that are still under way; speculating: branches
    in the batch now; beams: of such a level, on average; wanted: M_i summed over the beams of all.
    Every sequence must find a block to grow into, a new branch needs two.
    """
    if view.waiting or not left:
        return 0
    ample = view.spare_blocks - view.running - speculating
    if ample < 0:
        return 0
    most = min(view.flat_batch or view.running + left, view.max_running) - view.running
    if view.flat_batch and wanted and beams * (1 - most / wanted) > BEGUN_LATE:
        return 0
    return max(0, min(most, speculating + ample // 2))


def flat_batch(step_s: Callable[[int], float], most: int, tolerance: float = 0.25) -> int:
    """The largest batch up to `most` whose step is at most `tolerance` slower than that of one
    sequence. step_s: seconds of a step by batch, never falling (see `cost_curves`)."""
    low, high, bound_s = 1, most, (1 + tolerance) * step_s(1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if step_s(middle) <= bound_s else (low, middle - 1)
    return low


def truncated(length: int, ratio: float, seed: int) -> int:
    """Of `length` tokens drawn ahead, how many a duplicate keeps by the paper's rule (line 19):
    a share drawn from a normal distribution with mean R = `ratio`.

    For comparison only: a duplicate that begins with its sibling's tokens is another search.
    """
    share = NormalDist(ratio, TRUNCATION_SPREAD).inv_cdf((mix64(seed, length) + 0.5) / 2**63)
    return round(length * min(1.0, max(0.0, share)))
