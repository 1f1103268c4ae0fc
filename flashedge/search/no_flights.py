"""The part of a state that is about rollouts in flight, for searches that have none."""

from __future__ import annotations

from flashedge.search.flights import Flight


class NoFlights:
    """See `base.SearchState`. All searches but MCTS have nothing in flight."""

    __slots__ = ()

    @property
    def flights(self) -> tuple[Flight, ...]:
        return ()

    @property
    def turn(self) -> int:
        return 0

    @property
    def num_futile(self) -> int:
        return 0

    @property
    def num_cancelled(self) -> int:
        return 0
