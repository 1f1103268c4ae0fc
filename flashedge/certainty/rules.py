"""A policy as plain values, which requests, calibrations and files can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from flashedge.certainty.combine import Thresholds
from flashedge.certainty.policies import Curve, Length, Policy, Threshold
from flashedge.certainty.skyline import Skyline

POLICIES = ("length", "static", "every_5", "every_step", "initial_curve", "dynamic_curve")
_EVERY: Mapping[str, int] = MappingProxyType({"static": 0, "every_5": 5, "every_step": 1})
_AT_A_TIME: Mapping[str, int] = MappingProxyType({**_EVERY, "dynamic_curve": 1})
"""Most progress between two later decisions. 0, as for all others: there is one decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A policy and its parameters."""

    policy: str
    """One of POLICIES."""
    detect: int
    """The progress at which the policy decides for the first time."""
    thresholds: tuple[tuple[str, float], ...]
    """(measure, least value) pairs, at least one. A curve uses the measure of the first pair."""
    max_tokens: int = 0
    """`length` only: stop runs that have spent at most so many tokens."""
    curve: tuple[tuple[float, int], ...] = ()
    """Curves only: (certainty, progress needed) pairs."""

    def find_largest_group(self, cap: int) -> int:
        """The most progress between two decisions of a run that ends at `cap`."""
        first = min(self.detect, cap)
        rest = cap - first
        return max(first, min(rest, _AT_A_TIME.get(self.policy, 0) or rest))

    def build_policy(self) -> Policy:
        if self.policy in _EVERY:
            least = Thresholds(least=self.thresholds)
            return Threshold(detect=self.detect, thresholds=least, every=_EVERY[self.policy])
        if self.policy == "length":
            return Length(detect=self.detect, max_tokens=self.max_tokens)
        return Curve(
            detect=self.detect,
            measure=self.thresholds[0][0],
            skyline=Skyline.fit(self.curve),
            every=1 if self.policy == "dynamic_curve" else 0,
        )
