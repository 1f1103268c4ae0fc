"""The families by name, and how a member is made of a location and a spread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import exp
from types import MappingProxyType

from flashedge.scheduling.lengths.base import LengthDistribution
from flashedge.scheduling.lengths.families.exponential import Exponential
from flashedge.scheduling.lengths.families.gamma import Gamma
from flashedge.scheduling.lengths.families.log_normal import LogNormal
from flashedge.scheduling.lengths.families.log_t import LogT
from flashedge.scheduling.lengths.families.weibull import Weibull


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family that has a likelihood."""

    build: Callable[[float, float, float], LengthDistribution]
    """Makes a member of the location of ln X, its spread, and ν. e^location is a typical length in
    tokens; for small spreads the spread is about the coefficient of variation."""

    has_spread: bool = True
    """Whether the spread is free."""

    has_nu: bool = False
    """Whether ν is free."""


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "log_t": Family(build=lambda location, spread, _: LogT(location, spread)),
        "log_t_free": Family(build=LogT, has_nu=True),
        "log_normal": Family(build=lambda location, spread, _: LogNormal(location, spread)),
        "gamma": Family(
            build=lambda location, spread, _: Gamma(spread**-2, exp(location) * spread**2)
        ),
        "weibull": Family(build=lambda location, spread, _: Weibull(1 / spread, exp(location))),
        "exponential": Family(
            build=lambda location, *_: Exponential(exp(location)), has_spread=False
        ),
    }
)
"""`log_t` has ν = 3.5, `log_t_free` any ν."""

NAMES = (*FAMILIES, "point")
"""What `fit.py` can fit."""
