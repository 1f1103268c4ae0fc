"""Rollouts in flight: those that were launched and have not ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from flashedge.types import NodeId


class Stage(StrEnum):
    """What a rollout in flight is doing."""

    GENERATING = "generating"  # the children of its node
    SCORING = "scoring"  # the children of its node
    READY = "ready"  # its children are scored; it waits for its turn
    WAITING = "waiting"  # another rollout expands its node


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """One rollout in flight."""

    number: int
    """Rollouts are numbered from 0 in the order of their launch."""
    node: NodeId
    """Where its path ends so far: the node that it expands, or waits at."""
    stage: Stage
    reward: float
    """Aggregate of its path's scores so far. 1.0 at the root."""
    outstanding: int = 0
    """Results of its stage that have not arrived."""
