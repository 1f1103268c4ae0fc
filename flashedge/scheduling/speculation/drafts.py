"""What is drawn beyond the end of a step before anybody asks for it, and the beams it follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from flashedge.scheduling.speculation.slots import BeamState, FollowUp
from flashedge.types import FinishReason, Sampling, TokenIds


class DraftState(StrEnum):
    HELD = "held"  # takes no place, keeps its tokens
    RUNNING = "running"  # draws a token in each engine step
    WHOLE = "whole"  # its step is done
    GONE = "gone"  # taken over or dropped


_S = DraftState
_NEXT: Mapping[DraftState, frozenset[DraftState]] = {
    _S.HELD: frozenset({_S.RUNNING, _S.GONE}),
    _S.RUNNING: frozenset({_S.HELD, _S.WHOLE, _S.GONE}),
    _S.WHOLE: frozenset({_S.GONE}),
    _S.GONE: frozenset(),
}


@dataclass(slots=True, eq=False, kw_only=True)
class Draft:
    """The step of a child that nobody asked for yet.

    path: prompt and path up to the boundary; child: its index; order: the place in which its beam
    finished; token_ids, logprobs: (num_drawn,); finish: why it ended, None before.
    """

    follow_up: FollowUp
    path: TokenIds
    sampling: Sampling
    child: int
    order: int
    state: DraftState = DraftState.HELD
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: FinishReason | None = None

    @property
    def seed(self) -> int:
        return self.follow_up.seeds[self.child]

    @property
    def rank(self) -> tuple[int, int, int]:
        """Lower goes first: the best bin; within it every beam's own stream, then its others."""
        return (-self.follow_up.potential, self.child, self.order)

    def move(self, to: DraftState) -> None:
        """Raises ValueError on an illegal move, changing nothing."""
        if to not in _NEXT[self.state]:
            raise ValueError(f"draft of seed {self.seed}: {self.state} -> {to} is not a legal move")
        self.state = to


@dataclass(slots=True, eq=False, kw_only=True)
class Beam:
    """A step that was asked for. path: prompt and path up to its end, None while it generates;
    order: the place in which it finished; drafts: of its children begun so far, by index."""

    follow_up: FollowUp
    sampling: Sampling
    path: TokenIds | None = None
    order: int = 0
    drafts: list[Draft] = field(default_factory=list)

    @property
    def state(self) -> BeamState:
        if self.path is None:
            return BeamState.GENERATING
        there = [draft for draft in self.drafts if draft.state is not _S.GONE]
        if any(draft.state is _S.RUNNING for draft in there):
            return BeamState.SPECULATING
        return BeamState.HELD if any(draft.token_ids for draft in there) else BeamState.FINISHED

    @property
    def unbegun(self) -> range:
        """Children that may still be begun."""
        return range(len(self.drafts), min(self.follow_up.potential, len(self.follow_up.seeds)))

    def draft(self, child: int) -> Draft:
        """What child `child` would be, held and empty. Not yet begun."""
        assert self.path is not None, "nothing follows a step that is not done"
        return Draft(
            follow_up=self.follow_up,
            path=self.path,
            sampling=self.sampling,
            child=child,
            order=self.order,
        )
