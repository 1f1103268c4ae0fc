"""Which drafts of steps are worth their time.

A level ends with its slowest step. Meanwhile a finished beam can go on with what would come next if
it were kept: child 0 continues the beam's own stream, the other children start at the boundary with
seeds of their own. A token's noise is a function of (seed, position), so a draft holds the tokens
that the child itself would draw; nothing is filtered or corrected afterwards.

The paper fills the slots that finished beams leave in the batch, those of the best beams first. But
each sequence makes a step longer, unless the device has nothing better to do. So here a draft has
to be likely enough: how likely, the last levels tell (`DraftGains`), and how likely it is, the
drafts before it (`RequestRates`). Both are ours.

Ref: arXiv 2509.00195 §4.1. Departures: ADR 8, ADR 32.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log2

CERTAIN = 1.0
LIKELIEST = 0.99
"""The highest chance of a draft that is not certain."""
LEAST_CHANCES = (0.0, 0.15, 0.25, 0.35, 0.5, 0.65, 0.8)
"""What is tried as the least chance of a draft."""
MARGIN = 2.0
"""How much more time has to be saved than taken. On a simulated 4090 levels got shorter by 0.7 of
what was counted for the levels before, and 1.4 times as many tokens were drawn for nothing. With a
margin of 1.4 searches of 64 paths lost 3 to 6 %."""
ASSUMED_STEPS = 4.0
"""Saved steps that are assumed of each width, beside those that were counted: without them short
searches gained 2 to 3 % less at n = 4 and 16 (simulated)."""
LEVEL_KEPT = 0.9
"""How much of a level's weight the next one of like width leaves."""
ASSUMED_DRAFTS = 8.0
"""Drafts' worth of weight on what is assumed of a kind."""

BINS = 8
"""Most limits M_i of a beam that are told apart."""

Kind = tuple[int, int, int]
"""What drafts have in common that are taken to be equally likely, see `sort_draft`."""


def sort_draft(siblings: int, limit: int, child: int) -> Kind:
    """Find the kind of a draft. siblings: how many children its beam may have at most, of which
    `limit` may be drafted. child: its index. The larger these are, the less one more matters: in
    most searches `siblings` falls with each path that ends."""
    return siblings.bit_length(), limit * BINS // siblings, child.bit_length()


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
    base_s: float
    sequence_s: float
    """The expected time of a step without sequences, and what each adds, in the same unit."""


def count_places(view: BatchView, drafting: int) -> int:
    """How many drafts may be in the batch if a step of any size is worth its time: 0 while a
    standard request waits. Each sequence needs a free KV block to grow into, and a new draft needs
    two. drafting: drafts in the batch now."""
    free_blocks = view.spare_blocks - view.running - drafting
    if view.waiting or free_blocks < 0:
        return 0
    return max(0, min(view.max_running - view.running, drafting + free_blocks // 2))


@dataclass(slots=True)
class DraftGains:
    """What drafts would have gained in the last levels, by how likely a child had to be for one.

    Where the slowest step of a level follows a beam that was among the last to end, or one whose
    children are not drafted, no other draft saves anything. So whole levels are counted, with
    drafts or without: each step whose child was likely enough could have begun when its beam had
    ended, and so could those of the children that were not requested.
    """

    _counts: dict[tuple[int, float], tuple[float, float]] = field(default_factory=dict)
    """(engine steps saved, tokens drawn for nothing), by the order of magnitude of a level's width
    and the least chance."""

    def note(
        self, level: Sequence[tuple[float, float, float]], possible: Sequence[tuple[float, float]]
    ) -> None:
        """Count a level whose steps have all ended.

        level: (children, 3) the chance that the child was requested, the engine steps between the
        end of its beam and that of the beam's level, and those that its step takes without a draft.
        possible: (drafts, 2) the first two, of all children that might have been requested.
        """
        longest = max(steps for _, _, steps in level)
        mean = sum(steps for _, _, steps in level) / len(level)
        for least in LEAST_CHANCES:
            left = max(steps - (ahead if chance >= least else 0) for chance, ahead, steps in level)
            used = sum(min(ahead, steps) for chance, ahead, steps in level if chance >= least)
            drawn = sum(min(ahead, mean) for chance, ahead in possible if chance >= least)
            key = _sort_width(len(level)), least
            saved, wasted = self._counts.get(key, (0.0, 0.0))
            self._counts[key] = (
                LEVEL_KEPT * saved + longest - max(left, 0.0),
                LEVEL_KEPT * wasted + max(0.0, drawn - used),
            )

    def choose_least_chance(self, view: BatchView, width: int, runs: int, branching: int) -> float:
        """Choose how likely a child of a beam in a level of that width has to be for a draft. A
        saved step is worth its time, and each token that is drawn for nothing makes a step longer
        for all `runs` of the batch. CERTAIN if only drafts of certain children pay. branching: the
        most children of a beam."""
        step_s = view.base_s + width * view.sequence_s
        best, chosen = 0.0, CERTAIN
        for least in LEAST_CHANCES:
            saved, wasted = self._counts.get((_sort_width(width), least), (0.0, 0.0))
            if least == 0.0:  # as if half of a beam's other children were drafted in vain
                saved += ASSUMED_STEPS
                wasted += ASSUMED_STEPS * width * (branching - 1) / 2
            gain = saved * step_s - MARGIN * wasted * view.sequence_s * runs
            if gain > best:
                best, chosen = gain, least
        return chosen


def _sort_width(width: int) -> int:
    """The power of two that is nearest to a width."""
    return round(log2(width))


@dataclass(slots=True)
class RequestRates:
    """How often drafted children were requested so far, by kind.

    Before drafts were counted, a first child is taken to be requested once in as many times as it
    has siblings, since so few beams are kept, and another one as often as the one before it."""

    _counts: dict[Kind, tuple[int, int]] = field(default_factory=dict)
    """(requested, all) drafts."""

    def note(self, kind: Kind, *, is_requested: bool) -> None:
        requested, every = self._counts.get(kind, (0, 0))
        self._counts[kind] = requested + is_requested, every + 1

    def find(self, kind: Kind) -> float:
        """The chance that such a child is requested, which the child before it has at least."""
        siblings, limit, late = kind
        before = self.find((siblings, limit, late - 1)) if late else 2.0 ** (1 - siblings)
        requested, every = self._counts.get(kind, (0, 0))
        chance = (requested + ASSUMED_DRAFTS * before) / (every + ASSUMED_DRAFTS)
        return min(chance, before if late else LIKELIEST)


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
