"""The life cycle of drafts, in the simulator and in vLLM's scheduler.

A draft is the step of a child whose request has not arrived yet.

    state      meaning
    paused     keeps its tokens, and its KV while there is memory for it; takes no slot
    running    takes a slot of the engine's batch and draws a token in each engine step
    complete   its step has ended; it waits for the request
    adopted    the request has arrived and continues from the draft's tokens and KV (final)
    dropped    nothing will request it (final)

    move                    made by                       when
    created as paused       DraftBoard.finish_beam        a beam ends; for its child 0
                            DraftBoard.plan               for any other child, at its first run
    paused  -> running      DraftBoard.plan               it is worth its time
    running -> paused       DraftBoard.plan               it is so no more
                            DraftBoard.pause              the engine ran out of KV blocks
    running -> complete     DraftBoard.append             its last token is drawn
    paused  -> complete     DraftBoard.append             the same, in a step that was under way
                                                          when the draft was paused
    open    -> adopted      DraftBoard.add_beam           a request has its path, seed and sampling
    open    -> dropped      DraftBoard.drop_unused        what follows its level has no such seed
                            DraftBoard.end_run, .clear    the run ends, the engine dies

`open` stands for paused, running and complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from flashedge.scheduling.speculation.draft_choice import CERTAIN, Kind, RequestRates, sort_draft
from flashedge.types import BLANK_LINE, FinishReason, Granularity, Sampling, TokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """The children that a step will have if the search keeps it. The search knows them before the
    step is generated."""

    run: str
    level: int
    """The beams of a level wait for each other, and for those of earlier levels of the run: with
    rollouts in parallel, several levels generate at once."""
    seeds: tuple[int, ...]
    """The children's, in order. Empty when nothing can follow the step."""
    granularity: Granularity
    """Granularity of the children. Its `max_tokens` is an upper bound, since the tokens of the step
    itself are not subtracted yet."""
    max_drafts: int
    """How many of the children may be drafted: M_i in the paper."""
    step_rule: str = BLANK_LINE
    deterministic: bool = False

    @property
    def key(self) -> tuple[str, int]:
        return self.run, self.level

    @property
    def boundary(self) -> str | None:
        """The step rule that ends the children, or None where they go on to the path's end."""
        return None if self.granularity.to_end else self.step_rule

    def to_json(self) -> dict[str, Any]:
        names = ("run", "level", "seeds", "max_drafts", "step_rule", "deterministic")
        own = {name: getattr(self, name) for name in names}
        return {**own, "granularity": (self.granularity.max_tokens, self.granularity.to_end)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Continuation:
        max_tokens, to_end = data["granularity"]
        granularity = Granularity(max_tokens=max_tokens, to_end=to_end)
        return cls(**{**data, "seeds": tuple(data["seeds"]), "granularity": granularity})


class DraftState(StrEnum):
    PAUSED = "paused"
    RUNNING = "running"
    COMPLETE = "complete"
    ADOPTED = "adopted"
    DROPPED = "dropped"


_S = DraftState
_MOVES: Mapping[DraftState, frozenset[DraftState]] = {
    _S.PAUSED: frozenset({_S.RUNNING, _S.COMPLETE, _S.ADOPTED, _S.DROPPED}),
    _S.RUNNING: frozenset({_S.PAUSED, _S.COMPLETE, _S.ADOPTED, _S.DROPPED}),
    _S.COMPLETE: frozenset({_S.ADOPTED, _S.DROPPED}),
    _S.ADOPTED: frozenset(),
    _S.DROPPED: frozenset(),
}


@dataclass(slots=True, eq=False, kw_only=True)
class Beam:
    """A step that was requested, and the drafts that follow it."""

    continuation: Continuation
    sampling: Sampling
    path: TokenIds = ()
    """Prompt and path up to the end of the step. Empty while it generates."""
    order: int = 0
    """How many beams had finished before this one did."""
    start: int = 0
    """Tokens of prompt and path before the step."""
    began_at: int = 0
    """The engine's steps so far when it was requested."""
    ended_at: int = 0
    """The same when it had ended."""
    chance: float = 0.0
    """How likely it was to be requested."""
    child_chances: Mapping[int, float] = field(default_factory=dict)
    """How likely its children are, those that may be drafted, by their seeds."""
    ahead: int = 0
    """Steps between the end of the beam that it follows and the end of that beam's level."""
    adopted: int = 0
    """Tokens that a draft had drawn for it."""
    drafts: list[Draft] = field(default_factory=list)
    """Of its first children, in order."""
    num_certain: int = 0
    """Its first children, as many as the search will certainly request."""

    @property
    def next_children(self) -> range:
        """Children that have no draft yet and may have one."""
        most = min(self.continuation.max_drafts, len(self.continuation.seeds))
        return range(len(self.drafts), max(most, self.num_certain))

    def draft(self, child: int, rates: RequestRates) -> Draft:
        """Create the paused draft of a child, without tokens."""
        draft = Draft(beam=self, child=child)
        draft.chance = CERTAIN if child < self.num_certain else rates.find(draft.kind)
        return draft


@dataclass(slots=True, eq=False, kw_only=True)
class Draft:
    beam: Beam
    child: int
    """Index of the child in `Continuation.seeds`."""
    chance: float = 0.0
    """That the search requests it. 1 if it does so whatever the other beams of the level get."""
    state: DraftState = DraftState.PAUSED
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: FinishReason | None = None

    @property
    def continuation(self) -> Continuation:
        return self.beam.continuation

    @property
    def path(self) -> TokenIds:
        """Prompt and path up to the boundary where the draft starts."""
        return self.beam.path

    @property
    def sampling(self) -> Sampling:
        return self.beam.sampling

    @property
    def seed(self) -> int:
        return self.continuation.seeds[self.child]

    @property
    def is_open(self) -> bool:
        return bool(_MOVES[self.state])

    @property
    def is_certain(self) -> bool:
        return self.chance == CERTAIN

    @property
    def kind(self) -> Kind:
        return sort_draft(len(self.continuation.seeds), self.continuation.max_drafts, self.child)

    @property
    def rank(self) -> tuple[float, int, int]:
        """The lowest is worth most: what is likeliest, of equal chances every child 0 before other
        children, then the beam that finished first."""
        return (-self.chance, self.child, self.beam.order)

    def move(self, to: DraftState) -> None:
        """Raises ValueError on an illegal move, changing nothing."""
        if to not in _MOVES[self.state]:
            raise ValueError(f"draft of seed {self.seed}: {self.state} -> {to} is not a legal move")
        self.state = to
