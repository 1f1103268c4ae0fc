"""What the simulated engines' sequences are computed for: steps, drafts, scores."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from flashedge.engine.base import Chunk, ExtendRequest
from flashedge.errors import EngineError
from flashedge.scheduling.speculation.draft_board import DraftBoard
from flashedge.scheduling.speculation.drafts import Draft
from flashedge.search.steps import StepEnd
from flashedge.types import FinishReason
from scripts.lab.sim.codec import EOS, RULES
from scripts.lab.sim.model import Reader
from scripts.lab.sim.sequence import SimSequence


class Job(ABC):
    """Decides what happens each time all KV of its sequence is computed."""

    sequence: SimSequence

    @abstractmethod
    def advance(self) -> bool:
        """Use the result of an engine step. True when the job is done."""

    @abstractmethod
    def fail(self, error: EngineError) -> None:
        """Pass the error to whoever waits for the job."""


class GenerationJob(Job):
    """One ExtendRequest under way."""

    def __init__(
        self,
        sequence: SimSequence,
        request: ExtendRequest,
        reader: Reader,
        *,
        room: int,
        interval: int,
        on_end: Callable[[GenerationJob, FinishReason], None],
    ) -> None:
        """room: tokens that fit into the context; interval: tokens of a chunk; on_end: called with
        the reason as soon as the step ends."""
        self.sequence = sequence
        self.reader = reader
        self.out: asyncio.Queue[Chunk | EngineError] = asyncio.Queue()
        """Chunks, or the error that ended the request."""
        self._prompt_tokens = len(request.token_ids)
        self._seed = request.seed if request.sampling.temperature > 0 else None
        rule = request.step_rule if request.to_boundary else None
        self._end = _make_step_end(request.max_tokens, room, rule)
        self._interval = interval
        self._on_end = on_end
        self._generated = 0
        self._previous: int | None = None
        self._pending: list[tuple[int, float]] = []
        self._has_sent = False

    @property
    def path(self) -> tuple[int, ...]:
        """Prompt and what was generated so far."""
        return tuple(self.sequence.tokens[: self._prompt_tokens + self._generated])

    def replay(self, token_ids: Sequence[int], logprobs: Sequence[float]) -> bool:
        """Start with the tokens of an adopted draft, which are in the sequence already. The
        request's own limits hold: it may end before it has used all of them. True when it ends."""
        finish = None
        for token, logprob in zip(token_ids, logprobs, strict=True):
            finish = self._add_token(token, logprob)
            if finish is not None:
                break
        if self._pending:
            self._send(finish, speculated_tokens=len(self._pending))
        return self._end_if(finish)

    def advance(self) -> bool:
        token, logprob = self.reader.draw(self._seed)
        self.reader.read(token)
        self.sequence.tokens.append(token)
        finish = self._add_token(token, logprob)
        if finish or len(self._pending) >= self._interval:
            self._send(finish)
        return self._end_if(finish)

    def fail(self, error: EngineError) -> None:
        self.out.put_nowait(error)

    def _add_token(self, token: int, logprob: float) -> FinishReason | None:
        self._pending.append((token, logprob))
        self._generated += 1
        previous, self._previous = self._previous, token
        return self._end.find_reason(previous, token, self._generated)

    def _end_if(self, finish: FinishReason | None) -> bool:
        if finish is not None:
            self._on_end(self, finish)
        return finish is not None

    def _send(self, finish: FinishReason | None, speculated_tokens: int = 0) -> None:
        token_ids, logprobs = zip(*self._pending, strict=True)
        cached = 0 if self._has_sent else min(self.sequence.cached or 0, self._prompt_tokens)
        self.out.put_nowait(
            Chunk(
                token_ids=token_ids,
                logprobs=logprobs,
                finish=finish,
                cached_tokens=cached,
                speculated_tokens=speculated_tokens,
            )
        )
        self._pending, self._has_sent = [], True


class DraftJob(Job):
    """One draft under way. It is never done by itself: it waits to be adopted or dropped."""

    def __init__(
        self,
        sequence: SimSequence,
        draft: Draft,
        reader: Reader,
        *,
        room: int,
        board: DraftBoard,
        on_complete: Callable[[DraftJob], None],
    ) -> None:
        """room: tokens that fit into the context; on_complete: called when the draft's step has
        ended."""
        self.sequence = sequence
        self._draft = draft
        self._reader = reader
        self._seed = draft.seed if draft.sampling.temperature > 0 else None
        after = draft.continuation
        self._end = _make_step_end(after.granularity.max_tokens, room, after.boundary)
        self._board = board
        self._on_complete = on_complete

    def advance(self) -> bool:
        drawn = self._draft.token_ids
        previous = drawn[-1] if drawn else None
        token, logprob = self._reader.draw(self._seed)
        self._reader.read(token)
        self.sequence.tokens.append(token)
        finish = self._end.find_reason(previous, token, len(drawn) + 1)
        self._board.append(self._draft, token, logprob, finish)
        if finish is not None:
            self._on_complete(self)
        return False

    def fail(self, error: EngineError) -> None:
        """Nobody waits for a draft."""


class ScoringJob(Job):
    """One ScoreRequest under way. `done` is set once all of its prompt is computed."""

    def __init__(self, sequence: SimSequence) -> None:
        self.sequence = sequence
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def advance(self) -> bool:
        if not self.done.done():
            self.done.set_result(None)
        return True

    def fail(self, error: EngineError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


def _make_step_end(max_tokens: int, room: int, rule: str | None) -> StepEnd:
    boundary = None if rule is None else RULES[rule]
    return StepEnd(max_tokens=max_tokens, room=room, boundary=boundary, stop_ids={EOS})
