"""One request in a simulated engine's scheduler: its tokens, its KV blocks, its state.

state      meaning
waiting    in line for the batch
running    in the batch
paused     a draft that takes no slot and keeps its KV until others need the blocks
done       finished, cancelled or dropped (final)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from scripts.lab.sim.blocks import chain


class SequenceState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"


_S = SequenceState
_MOVES: Mapping[SequenceState, frozenset[SequenceState]] = {
    _S.WAITING: frozenset({_S.RUNNING, _S.PAUSED, _S.DONE}),
    _S.RUNNING: frozenset({_S.WAITING, _S.PAUSED, _S.DONE}),
    _S.PAUSED: frozenset({_S.WAITING, _S.DONE}),
    _S.DONE: frozenset(),
}


@dataclass(slots=True, eq=False, kw_only=True)
class SimSequence:
    """The tokens of one request, and where their KV is."""

    id: int
    tokens: list[int]
    priority: int = 0
    program: str | None = None
    """See `engine.base.ExtendRequest`."""
    is_draft: bool = False
    reuse_tokens: int | None = None
    """Most tokens whose KV may come from the cache. None: all but the last."""
    state: SequenceState = SequenceState.WAITING
    computed: int = 0
    """`tokens[:computed]` have KV in `blocks`."""
    cached: int | None = None
    """Tokens whose KV came from the cache when the sequence first ran. None before that."""
    blocks: list[int] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    """Chain hashes of the first whole blocks, as far as they were needed."""

    def move(self, to: SequenceState) -> None:
        """Raises ValueError on an illegal move, changing nothing."""
        if to not in _MOVES[self.state]:
            raise ValueError(f"sequence {self.id}: {self.state} -> {to} is not a legal move")
        self.state = to

    def key(self, index: int, block_tokens: int) -> int:
        """Chain hash of whole block `index`."""
        while len(self.keys) <= index:
            at = len(self.keys) * block_tokens
            previous = self.keys[-1] if self.keys else 0
            self.keys.append(chain(previous, self.tokens[at : at + block_tokens]))
        return self.keys[index]


class Slice(NamedTuple):
    """A sequence's part of one step: `new` tokens, computed behind `context` tokens of KV."""

    sequence: SimSequence
    context: int
    new: int
