"""Policies: how much more a run may spend, given the certainty at its checkpoints.

A search consults its policy before it starts, with an empty history, and again whenever its
progress has reached the last allotment. Policies are pure functions of the history.
Ref: arXiv 2412.20993 App. B.2, D.2, F.2, G.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from flashedge.certainty.combine import Thresholds
from flashedge.certainty.history import LEAD, History
from flashedge.certainty.skyline import Skyline


class Reason(StrEnum):
    """Why a policy stopped a run."""

    CERTAINTY = "certainty"
    NON_CONVERGENCE = "non_convergence"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allotment:
    """What a policy grants a run."""

    more: int
    """Progress to make before the policy is consulted again. 0 stops the run."""
    reason: Reason = Reason.CERTAINTY
    """Why the run stops, if it does."""


class Policy(Protocol):
    def allot(self, history: History, cap: int) -> Allotment:
        """Return the allotment after `history`, oldest checkpoint first.

        cap: the progress at which the run ends anyway; no allotment goes beyond it.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Even:
    """Give every run the cap. This is the baseline. Ref: App. F.2 (1)."""

    def allot(self, history: History, cap: int) -> Allotment:
        return Allotment(more=_rest(history, cap))


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """Stop at the detection step if the run has spent few tokens. Ref: App. F.2 (2).

    The paper says "terminates based on a predefined token-length threshold". Longer paths mean
    harder problems (App. B.3), so we stop the short ones.
    """

    detect: int
    max_tokens: int

    def allot(self, history: History, cap: int) -> Allotment:
        if not history:
            return Allotment(more=min(self.detect, cap))
        if len(history) == 1 and history[-1].tokens <= self.max_tokens:
            return Allotment(more=0)
        return Allotment(more=_rest(history, cap))


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """Stop once the thresholds are met, checked at the detection step and then regularly.

    Ref: App. G.4.
    """

    detect: int
    thresholds: Thresholds
    every: int = 0
    """Progress between two checks. 0 checks once ("static"), 5 is "5-step", 1 "single-step"."""

    def allot(self, history: History, cap: int) -> Allotment:
        if not history:
            return Allotment(more=min(self.detect, cap))
        left = _rest(history, cap)
        if self.every == 0 and len(history) > 1:
            return Allotment(more=left)
        if self.thresholds.met(history[-1].measures):
            return Allotment(more=0)
        return Allotment(more=min(self.every, left) if self.every else left)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """Stop a vote once its most frequent answer is sure enough to win, asked after every path.

    The vote draws as many paths at once as its count still needs. See `certainty.lead`.
    """

    detect: int
    """Paths that are begun at the start."""
    least: float
    """The chance that suffices."""

    def allot(self, history: History, cap: int) -> Allotment:
        if history and history[-1].measures.get(LEAD, 0.0) >= self.least:
            return Allotment(more=0)
        return Allotment(more=min(1, _rest(history, cap)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Spend the most that calibration runs of this certainty needed, given by a skyline.

    Ref: App. B.2, G.4.
    """

    detect: int
    measure: str
    skyline: Skyline
    every: int = 0
    """Progress between two look-ups. 0 looks up once, at the detection step ("initial curve
    fit"); 1 or more is the "dynamic" curve."""

    def allot(self, history: History, cap: int) -> Allotment:
        if not history:
            return Allotment(more=min(self.detect, cap))
        checkpoint = history[-1] if self.every else history[0]
        needed = min(cap, self.skyline.look_up(checkpoint.measures.get(self.measure, 0.0), cap))
        more = max(0, needed - history[-1].progress)
        return Allotment(more=min(self.every, more) if self.every else more)


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """Another policy that also ends runs that do not converge.

    Ref: §2.1 (failing to converge justifies early termination).
    """

    policy: Policy
    after: int
    """The progress from which on a run may be given up."""
    below: float
    """Give up while `measure` is below this."""
    measure: str

    def allot(self, history: History, cap: int) -> Allotment:
        given = self.policy.allot(history, cap)
        if not history or given.more == 0:
            return given
        last = history[-1]
        if last.progress < self.after:
            return Allotment(more=min(given.more, self.after - last.progress))
        if last.measures.get(self.measure, 0.0) < self.below:
            return Allotment(more=0, reason=Reason.NON_CONVERGENCE)
        return given


def find_lead(policy: Policy | None) -> Lead | None:
    """The policy itself, or the one within it, if it stops by the lead of a vote."""
    within = policy.policy if isinstance(policy, GiveUp) else policy
    return within if isinstance(within, Lead) else None


def _rest(history: History, cap: int) -> int:
    return max(0, cap - (history[-1].progress if history else 0))
