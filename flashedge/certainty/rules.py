"""A policy as plain values, which requests, calibrations and files can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from flashedge.certainty.combine import Thresholds
from flashedge.certainty.history import LEAD
from flashedge.certainty.lead import find_most_wanted
from flashedge.certainty.policies import Curve, Lead, Length, Policy, Threshold
from flashedge.certainty.skyline import Skyline

_EVERY: Mapping[str, int] = MappingProxyType(
    {
        "length": 0,
        "static": 0,
        "every_5": 5,
        "every_step": 1,
        "initial_curve": 0,
        "dynamic_curve": 1,
    }
)
"""Progress between two decisions after the first one. 0: there is no other."""
POLICIES = tuple(_EVERY)
"""The policies that calibration chooses parameters for. Beside them there is LEAD, by its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A policy and its parameters."""

    policy: str
    """One of POLICIES, or LEAD."""
    detect: int
    """The progress at which the policy decides for the first time. LEAD decides from the first path
    on: for it, the paths that are begun at the start."""
    thresholds: tuple[tuple[str, float], ...]
    """(measure, least value) pairs, at least one. A curve uses the measure of the first pair."""
    max_tokens: int = 0
    """`length` only: stop runs that have spent at most so many tokens."""
    curve: tuple[tuple[float, int], ...] = ()
    """Curves only: (certainty, progress needed) pairs."""

    def find_largest_group(self, cap: int) -> int:
        """The most paths that a run which ends at `cap` draws at once."""
        if self.policy == LEAD:
            wanted = find_most_wanted(cap, dict(self.thresholds)[LEAD])
            return max(min(self.detect, cap), wanted)
        first = min(self.detect, cap)
        rest = cap - first
        return max(first, min(rest, _EVERY[self.policy] or rest))

    def build_policy(self) -> Policy:
        if self.policy == LEAD:
            return Lead(detect=self.detect, least=dict(self.thresholds)[LEAD])
        every = _EVERY[self.policy]
        if self.policy == "length":
            return Length(detect=self.detect, max_tokens=self.max_tokens)
        if self.policy.endswith("curve"):
            return Curve(
                detect=self.detect,
                measure=self.thresholds[0][0],
                skyline=Skyline.fit(self.curve),
                every=every,
            )
        least = Thresholds(least=self.thresholds)
        return Threshold(detect=self.detect, thresholds=least, every=every)
