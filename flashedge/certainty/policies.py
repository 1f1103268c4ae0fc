"""Policies: how much more a run may spend, given the certainty at its checkpoints.

A search consults its policy before it starts, with an empty history, and again whenever its
progress has reached the last allotment. Policies are pure functions of the history.
Ref: arXiv 2412.20993 App. B.2, D.2, F.2, G.4. The paper's rules by length and by curves showed no
gain over a smaller n (docs/results/certainty.md) and are left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

from flashedge.certainty.measures import LEAD, History, find_most_wanted

_EVERY: Mapping[str, int] = MappingProxyType({"static": 0, "every_5": 5, "every_step": 1})
"""Progress between two decisions after the first one. With 0 the first is the only one."""
POLICIES = tuple(_EVERY)
"""The policies that calibration chooses thresholds for. LEAD needs none."""


class Reason(StrEnum):
    CERTAINTY = "certainty"
    NON_CONVERGENCE = "non_convergence"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allotment:
    more: int
    """Progress to make before the policy is consulted again. 0 stops the run."""
    reason: Reason = Reason.CERTAINTY
    """Why the run stops, if it does."""


class Policy(Protocol):
    def allot(self, history: History, cap: int) -> Allotment:
        """cap: the progress at which the run ends anyway; no allotment goes beyond it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Stops once the thresholds are met. Holds plain values, which requests and calibrations store.

    The policies of POLICIES check at `detect` first. After it static never checks again, every_5
    checks whenever the progress has grown by 5, and every_step whenever it has grown by 1. LEAD
    checks the lead of a vote after every path (see `measure_lead`). Ref: App. B.1, G.4; Table 3.
    Departure: a value that equals its threshold meets it, so that a threshold of 1 can be met.
    """

    policy: str
    """One of POLICIES, or LEAD."""
    detect: int
    """The progress at which the policy decides for the first time; for LEAD, the paths begun at the
    start."""
    thresholds: tuple[tuple[str, float], ...]
    """(measure, least value in [0, 1]) pairs, all of which must be met; at least one."""

    @property
    def least(self) -> float:
        """The threshold of the first measure."""
        return self.thresholds[0][1]

    def allot(self, history: History, cap: int) -> Allotment:
        left = max(0, cap - (history[-1].progress if history else 0))
        if self.policy == LEAD:
            sure = history and history[-1].measures.get(LEAD, 0.0) >= self.least
            return Allotment(more=0 if sure else min(1, left))
        every = _EVERY[self.policy]
        if not history:
            return Allotment(more=min(self.detect, cap))
        if every == 0 and len(history) > 1:
            return Allotment(more=left)
        return Allotment(more=0 if self.is_met(history[-1].measures) else min(every or left, left))

    def is_met(self, measures: Mapping[str, float]) -> bool:
        return all(name in measures and measures[name] >= least for name, least in self.thresholds)

    def find_largest_group(self, cap: int) -> int:
        """The most paths that a run which ends at `cap` draws at once."""
        first = min(self.detect, cap)
        if self.policy == LEAD:
            return max(first, find_most_wanted(cap, self.least))
        rest = cap - first
        return max(first, min(rest, _EVERY[self.policy] or rest))


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """Follows another policy, and also ends runs that do not converge. Ref: §2.1. Convergence is
    judged from `after` on, whenever `policy` is consulted. If `policy` was consulted before, it is
    consulted at `after` too. So with a static policy convergence is judged once: at `after` or at
    `detect`, whichever is later."""

    policy: Policy
    after: int
    """The least progress at which a run may be given up."""
    below: float
    """A run does not converge while `measure` is less than this, in [0, 1]."""
    measure: str
    """Name of the measure. It counts as 0 where a checkpoint has no value of it."""

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


def find_lead(policy: Policy | None) -> Rule | None:
    """The rule by the lead of a vote, alone or in a `GiveUp`. None for other policies."""
    rule = policy.policy if isinstance(policy, GiveUp) else policy
    return rule if isinstance(rule, Rule) and rule.policy == LEAD else None
