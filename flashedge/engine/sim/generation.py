"""Tokens of a simulated generator: those of a request, and those drawn before it is made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flashedge.engine.base import Chunk, ExtendRequest
from flashedge.engine.sim import scheduler as sim_scheduler
from flashedge.engine.sim.engine_loop import Job
from flashedge.engine.sim.text import BLANK_LINE, EOS, Reader
from flashedge.errors import EngineError
from flashedge.scheduling.speculation.draft_board import DraftBoard
from flashedge.scheduling.speculation.drafts import Draft
from flashedge.types import FinishReason


@dataclass(frozen=True, slots=True)
class StepEnd:
    """Where a segment ends. room: tokens that fit into the context behind its path."""

    max_tokens: int
    to_boundary: bool
    room: int

    def reason(self, token: int, generated: int) -> FinishReason | None:
        """Why `token`, the segment's `generated`-th, is its last one; None if it is not."""
        if token == EOS:
            return FinishReason.STOP
        if generated == self.room:
            return FinishReason.LENGTH  # also at a boundary: the path can't go on
        if self.to_boundary and token == BLANK_LINE:
            return FinishReason.BOUNDARY
        return FinishReason.STEP_LIMIT if generated == self.max_tokens else None


class Generation(Job):
    """One ExtendRequest under way. Chunks, or the error that ended it, wait in `out`.

    room: tokens that fit into the context; interval: tokens of a chunk; on_end: told why it ended
    as soon as it does.
    """

    def __init__(
        self,
        sequence: sim_scheduler.Sequence,
        request: ExtendRequest,
        reader: Reader,
        *,
        room: int,
        interval: int,
        on_end: Callable[[Generation, FinishReason], None],
    ) -> None:
        self.sequence = sequence
        self.out: asyncio.Queue[Chunk | EngineError] = asyncio.Queue()
        self.reader = reader
        self._prompt_tokens = len(request.token_ids)
        self._seed = request.seed if request.sampling.temperature > 0 else None
        self._end = StepEnd(request.max_tokens, request.to_boundary, room)
        self._interval = interval
        self._on_end = on_end
        self._generated = 0
        self._pending: list[tuple[int, float]] = []
        self._told = False

    @property
    def path(self) -> tuple[int, ...]:
        """Prompt and what was generated so far."""
        return tuple(self.sequence.tokens[: self._prompt_tokens + self._generated])

    def replay(self, token_ids: Sequence[int], logprobs: Sequence[float]) -> bool:
        """Begin with tokens that were drawn ahead and are in the sequence already, by the rules of
        this request. True when it is over: then it may have taken only some of them."""
        finish = None
        for drawn in zip(token_ids, logprobs, strict=True):
            finish = self._take(*drawn)
            if finish is not None:
                break
        if self._pending:
            self._tell(finish, speculated_tokens=len(self._pending))
        return self._over(finish)

    def advance(self) -> bool:
        token, logprob = self.reader.draw(self._seed)
        self.reader.read(token)
        self.sequence.tokens.append(token)
        finish = self._take(token, logprob)
        if finish or len(self._pending) >= self._interval:
            self._tell(finish)
        return self._over(finish)

    def fail(self, error: EngineError) -> None:
        self.out.put_nowait(error)

    def _take(self, token: int, logprob: float) -> FinishReason | None:
        self._pending.append((token, logprob))
        self._generated += 1
        return self._end.reason(token, self._generated)

    def _over(self, finish: FinishReason | None) -> bool:
        if finish is not None:
            self._on_end(self, finish)
        return finish is not None

    def _tell(self, finish: FinishReason | None, speculated_tokens: int = 0) -> None:
        token_ids, logprobs = zip(*self._pending, strict=True)
        cached = 0 if self._told else min(self.sequence.cached or 0, self._prompt_tokens)
        self.out.put_nowait(
            Chunk(
                token_ids=token_ids,
                logprobs=logprobs,
                finish=finish,
                cached_tokens=cached,
                speculated_tokens=speculated_tokens,
            )
        )
        self._pending, self._told = [], True


class Drafting(Job):
    """One draft under way; on_whole: told once its step is done."""

    def __init__(
        self,
        sequence: sim_scheduler.Sequence,
        draft: Draft,
        reader: Reader,
        *,
        room: int,
        board: DraftBoard,
        on_whole: Callable[[Drafting], None],
    ) -> None:
        self.sequence = sequence
        self._draft = draft
        self._reader = reader
        self._seed = draft.seed if draft.sampling.temperature > 0 else None
        bound = draft.follow_up.granularity
        self._end = StepEnd(bound.max_tokens, not bound.to_end, room)
        self._board = board
        self._on_whole = on_whole

    def advance(self) -> bool:
        """Never over by itself: it stays until somebody takes it over or drops it."""
        token, logprob = self._reader.draw(self._seed)
        self._reader.read(token)
        self.sequence.tokens.append(token)
        finish = self._end.reason(token, len(self._draft.token_ids) + 1)
        self._board.drawn(self._draft, token, logprob, finish)
        if finish is not None:
            self._on_whole(self)
        return False

    def fail(self, error: EngineError) -> None:
        """Nobody waits for it."""
