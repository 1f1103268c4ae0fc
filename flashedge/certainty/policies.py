"""How much more a run may spend, from how sure it has been: pure functions of its history.

A search asks its policy before it starts (empty history) and then at checkpoints: when its progress
has moved by what the last allotment gave it. Ref: arXiv 2412.20993 App. B.2, D.2, F.2, G.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from flashedge.certainty.combine import Thresholds
from flashedge.certainty.history import History
from flashedge.certainty.skyline import Skyline


class Reason(StrEnum):
    """Why a run was stopped early by its own certainty."""

    CERTAINTY = "certainty"
    NON_CONVERGENCE = "non_convergence"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allotment:
    """more: units of the progress to spend before the policy is asked again; 0: stop, for `reason`."""

    more: int
    reason: Reason = Reason.CERTAINTY


class Policy(Protocol):
    def allot(self, history: History, cap: int) -> Allotment:
        """What follows `history`, oldest first. cap: the progress's end; more never goes beyond it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Even:
    """All runs get the same: the cap. The baseline. Ref: App. F.2 (1)."""

    def allot(self, history: History, cap: int) -> Allotment:
        return Allotment(more=_left(history, cap))


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """Stop at the detection step if the run has spent few tokens. Ref: App. F.2 (2).

    The paper says "terminates based on a predefined token-length threshold"; since longer paths
    mean harder problems (App. B.3), we read: few tokens, so easy, so stop.
    """

    detect: int
    max_tokens: int

    def allot(self, history: History, cap: int) -> Allotment:
        if not history:
            return Allotment(more=min(self.detect, cap))
        if len(history) == 1 and history[-1].tokens <= self.max_tokens:
            return Allotment(more=0)
        return Allotment(more=_left(history, cap))


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """Stop once the thresholds are met, looking at the detection step and then every so often.

    every: 0 looks once (the static threshold), 5 is "5-step", 1 "single-step". Ref: App. G.4.
    """

    detect: int
    thresholds: Thresholds
    every: int = 0

    def allot(self, history: History, cap: int) -> Allotment:
        if not history:
            return Allotment(more=min(self.detect, cap))
        left = _left(history, cap)
        if self.every == 0 and len(history) > 1:
            return Allotment(more=left)
        if self.thresholds.met(history[-1].measures):
            return Allotment(more=0)
        return Allotment(more=min(self.every, left) if self.every else left)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Spend what a fitted skyline says runs of this certainty need at most.

    every: 0 fits the first checkpoint only ("initial curve fit": what is needed is settled at the
    detection step); 1 or more reads the curve again and again ("dynamic"). Ref: App. B.2, G.4.
    """

    detect: int
    measure: str
    skyline: Skyline
    every: int = 0

    def allot(self, history: History, cap: int) -> Allotment:
        if not history:
            return Allotment(more=min(self.detect, cap))
        checkpoint = history[-1] if self.every else history[0]
        needed = min(cap, self.skyline.needed(checkpoint.measures.get(self.measure, 0.0), cap))
        more = max(0, needed - history[-1].progress)
        return Allotment(more=min(self.every, more) if self.every else more)


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """Another policy, and an end for runs that don't settle: `measure` still below `below` when
    the progress has come to `after`. Ref: §2.1 (failing to converge justifies early termination)."""

    policy: Policy
    after: int
    below: float
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


def _left(history: History, cap: int) -> int:
    return max(0, cap - (history[-1].progress if history else 0))
