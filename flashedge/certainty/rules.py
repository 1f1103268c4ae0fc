"""A policy as plain values, which requests, calibrations and files can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from flashedge.certainty.combine import Thresholds
from flashedge.certainty.policies import Curve, Length, Policy, Threshold
from flashedge.certainty.skyline import Skyline

_EVERY: Mapping[str, int] = MappingProxyType(
    {
        "length": 0,
        "static": 0,
        "every_5": 5,
        "every_step": 1,
        "doubling": 0,
        "initial_curve": 0,
        "dynamic_curve": 1,
    }
)
"""Progress between two decisions after the first one. 0: there is no other, or (doubling) as much
as was made before."""
POLICIES = tuple(_EVERY)


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
        groups = [min(self.detect, cap)]
        if self.policy == "doubling":
            while (made := sum(groups)) < cap:
                groups.append(min(made, cap - made))
            return max(groups)
        rest = cap - groups[0]
        return max(groups[0], min(rest, _EVERY[self.policy] or rest))

    def build_policy(self) -> Policy:
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
        doubles = self.policy == "doubling"
        return Threshold(detect=self.detect, thresholds=least, every=every, doubles=doubles)
