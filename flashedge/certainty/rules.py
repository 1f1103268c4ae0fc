"""A policy as plain values: what a request can say, a calibration can find and a file can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from flashedge.certainty.combine import Thresholds
from flashedge.certainty.policies import Curve, Length, Policy, Threshold
from flashedge.certainty.skyline import Skyline

POLICIES = ("length", "static", "every_5", "every_step", "initial_curve", "dynamic_curve")
_EVERY: Mapping[str, int] = MappingProxyType({"static": 0, "every_5": 5, "every_step": 1})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """policy: one of POLICIES; detect: the progress at which it is first asked; thresholds: (measure,
    least value) pairs, at least one: a curve reads the first one's measure; max_tokens: of
    `length`; curve: (certainty, progress needed) pairs of the two curves."""

    policy: str
    detect: int
    thresholds: tuple[tuple[str, float], ...]
    max_tokens: int = 0
    curve: tuple[tuple[float, int], ...] = ()

    def made(self) -> Policy:
        """The policy that these values stand for."""
        if self.policy in _EVERY:
            least = Thresholds(least=self.thresholds)
            return Threshold(detect=self.detect, thresholds=least, every=_EVERY[self.policy])
        if self.policy == "length":
            return Length(detect=self.detect, max_tokens=self.max_tokens)
        return Curve(
            detect=self.detect,
            measure=self.thresholds[0][0],
            skyline=Skyline.fitted(self.curve),
            every=1 if self.policy == "dynamic_curve" else 0,
        )
