"""How many drafts may share a batch with standard requests, and how many follow each beam.

A beam that ends its step early leaves its slot in the batch empty until the slowest beam of its
level is done. Speculation fills the slot with what would come next if a finished beam were kept:
child 0 continues the beam's own stream, the other children start at the boundary with seeds of
their own. A token's noise is a function of (seed, position), so a draft holds the tokens that the
child itself would draw; nothing is filtered or corrected afterwards.

Ref: arXiv 2509.00195 §4.1. Departures: ADR 8.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

UNMEASURED_BATCH = 16
"""Batch that drafts may fill where `flat_batch` is not known. On a simulated 4090 searches of 4 and
16 paths gain as much with this limit as without, and one of 64 paths drafts only a sixth to a tenth
of the tokens."""
MAX_COLD_STARTS = 4
"""Steps of a level that may start without a draft (see `count_slots`). Chosen by hand: with 0 one
missing slot would stop all drafts; with 40 drafts would run that hardly ever shorten a level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchView:
    """What a scheduler knows of its batch before a step."""

    running: int
    """Standard requests in the batch."""
    waiting: int
    """Standard requests outside the batch."""
    max_running: int
    """Sequences that one step may hold, drafts included."""
    spare_blocks: int
    """Free KV blocks."""
    flat_batch: int = 0
    """Batch size up to which a step takes hardly longer (`find_flat_batch`). 0 if unknown."""
    unmeasured_batch: int = UNMEASURED_BATCH
    """Used in place of an unknown `flat_batch`."""


def count_places(view: BatchView, drafting: int) -> int:
    """How many drafts may be in the batch if a step of any size is worth its time: 0 while a
    standard request waits. Each sequence needs a free KV block to grow into, and a new draft needs
    two. drafting: drafts in the batch now."""
    free_blocks = view.spare_blocks - view.running - drafting
    if view.waiting or free_blocks < 0:
        return 0
    return max(0, min(view.max_running - view.running, drafting + free_blocks // 2))


def count_slots(
    view: BatchView, finished: int, drafting: int, *, beams: float = 0, max_drafts: int = 0
) -> int:
    """How many drafts may be in the batch that nobody may ever request.

    At most `count_places`: one for each finished beam, so that the batch stays as large as it was,
    but only in batches of up to `BatchView.unmeasured_batch`. A known `BatchView.flat_batch` bounds
    the batch instead, and speculation is skipped when it cannot shorten the level. A level ends
    with its slowest step, so if more than MAX_COLD_STARTS of the next steps start without a draft,
    drafting the others saves nothing.

    finished: finished beams of levels where others still generate. drafting: drafts in the batch
    now. beams: mean number of beams in such a level. max_drafts: `Continuation.max_drafts`, summed
    over all these beams.
    """
    if not finished:
        return 0
    unmeasured = min(view.running + finished, view.unmeasured_batch)
    slots = min(view.flat_batch or unmeasured, view.max_running) - view.running
    if view.flat_batch and max_drafts and beams * (1 - slots / max_drafts) > MAX_COLD_STARTS:
        return 0
    return max(0, min(slots, count_places(view, drafting)))


def limit_drafts(scores: Sequence[float | None], branching: int) -> tuple[int, ...]:
    """M_i = B - j + 1 of each beam: how many of its children may be drafted.

    B = branching equal bins divide the range from the lowest score to the highest. C_1 holds the
    highest, and beam i lies in bin C_j. A beam that was never scored (None) counts as in C_1. For
    REBASE and dynamic branching, `branching` is the most children that a beam can get. scores:
    (num_beams,) the score of each beam before the step that it generates.
    """
    known = [score for score in scores if score is not None]
    lowest, highest = min(known, default=0.0), max(known, default=0.0)
    span = highest - lowest

    def limit(score: float | None) -> int:
        if score is None or span == 0:
            return branching
        bins_below_top = int((highest - score) / span * branching)
        return branching - min(bins_below_top, branching - 1)

    return tuple(map(limit, scores))


FLAT_TOLERANCE = 0.25
"""Share by which a step of the flat batch may be slower than a step of one sequence. Chosen by
hand: with 0.025 noise would decide; with 2.5 drafts would slow down the steps they wait for."""


def find_flat_batch(step_s: Callable[[int], float], max_batch: int) -> int:
    """The largest batch whose step is at most FLAT_TOLERANCE slower than one of one sequence."""
    return bisect_right(range(1, max_batch + 1), (1 + FLAT_TOLERANCE) * step_s(1), key=step_s)
