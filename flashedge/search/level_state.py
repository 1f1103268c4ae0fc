"""The immutable state of a search that works in levels. See `level` for its transitions."""

from __future__ import annotations

from dataclasses import dataclass

from flashedge.search.base import Command
from flashedge.search.no_flights import NoFlights
from flashedge.search.voting_state import VotingState
from flashedge.types import NodeId

Shares = tuple[tuple[NodeId, int], ...]
"""Pairs of (parent, number of children), in the order of expansion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelState(NoFlights, VotingState):
    level: tuple[NodeId, ...] = ()
    """Nodes of the current level, ascending ids."""
    outstanding: int = 0
    """Results of this phase that have not arrived."""
    num_ended: int = 0
    """Nodes of the level whose path is known to end there."""
    planned: Shares = ()
    """The next level, while the policy decides whether it runs."""


Move = tuple[LevelState, tuple[Command, ...]]
"""A new state and the commands that follow from it."""
