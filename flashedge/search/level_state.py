"""The immutable state of a search that works in levels. See `level` for its transitions."""

from __future__ import annotations

from dataclasses import dataclass

from flashedge.search.base import Command
from flashedge.search.flights import Flight
from flashedge.search.voting_state import VotingState
from flashedge.types import NodeId

Shares = tuple[tuple[NodeId, int], ...]
"""Pairs of (parent, number of children), in the order of expansion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelState(VotingState):
    level: tuple[NodeId, ...] = ()
    """Nodes of the current level, ascending ids."""
    outstanding: int = 0
    """Results of this phase that have not arrived."""
    num_ended: int = 0
    """Nodes of the level whose path is known to end there."""
    planned: Shares = ()
    """The next level, while the policy decides whether it runs."""
    flights: tuple[Flight, ...] = ()
    """Always empty: a level has no rollouts."""
    turn: int = 0
    """Always 0."""
    num_cancelled: int = 0
    """Always 0."""


Move = tuple[LevelState, tuple[Command, ...]]
"""A new state and the commands that follow from it."""
