"""What users see of runs that are not over, and of the programs that they are a part of."""

from __future__ import annotations

from dataclasses import dataclass

from flashedge.scheduling.programs.standing import Standing
from flashedge.scheduling.rollouts.standing import BoostStanding


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """One run, as things stand. Nothing is known of a run that is over."""

    position: int | None = None
    """Runs that wait before it. None where it does not wait."""

    starts_in_s: float | None = None
    """When it is expected to start. None where it does not wait, or where that is not known."""

    median_tokens: float | None = None
    """Predicted length of one of its paths. None until it is predicted."""

    tail_tokens: float | None = None
    """The length that a tenth of its paths exceeds, as predicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """How programs are ordered, and how they stand."""

    policy: str
    programs: tuple[Standing, ...]
    """In their order: the first goes first."""

    boosts: tuple[BoostStanding, ...] = ()
    """How the rollouts of boosted runs are divided, for each pair that has such runs."""

    boost_running_s: float = 0.0
    """Seconds in which boosted runs went on, since the daemon began."""

    boost_open_s: float = 0.0
    """Those of boost_running_s in which the gate let more than one rollout of each through."""
