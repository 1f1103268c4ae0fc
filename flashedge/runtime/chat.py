"""Plain generation: text as it comes, cut at stop strings."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from flashedge.engine.base import Codec, ExtendRequest, Generator
from flashedge.errors import RequestError
from flashedge.runtime.request.checks import check_float, check_int
from flashedge.runtime.request.spec import check_messages
from flashedge.runtime.stopping import StopFilter
from flashedge.types import MAX_SEED, FinishReason, Message, Sampling, TokenIds

MAX_STOPS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSpec:
    """A plain completion. max_tokens None: up to the context's end; seed None: drawn."""

    messages: tuple[Message, ...]
    sampling: Sampling
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    n: int = 1

    def __post_init__(self) -> None:
        """Raises RequestError naming the first field that is wrong."""
        check_messages(self.messages)
        check_int("n", self.n, 1, 128)
        check_int("top_k", self.sampling.top_k, 0, 1 << 20)
        check_float("temperature", self.sampling.temperature, 0.0, 2.0)
        check_float("top_p", self.sampling.top_p, 0.0, 1.0, open_low=True)
        if self.seed is not None:
            check_int("seed", self.seed, 0, MAX_SEED)
        if self.max_tokens is not None:
            check_int("max_tokens", self.max_tokens, 1, 1 << 20)
        if len(self.stop) > MAX_STOPS or not all(self.stop):
            raise RequestError(f"stop takes up to {MAX_STOPS} non-empty strings", param="stop")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatDelta:
    """New text of choice `index`. finish is stop, length or None; prompt_tokens of the request."""

    index: int
    text: str
    token_ids: TokenIds
    finish: str | None
    prompt_tokens: int


async def stream_choice(
    generator: Generator, spec: ChatSpec, prompt_ids: TokenIds, index: int, seed: int
) -> AsyncGenerator[ChatDelta]:
    """Deltas of one choice; the last one carries `finish`. Closing it cancels the request."""
    room = generator.max_model_len - len(prompt_ids)
    request = ExtendRequest(
        token_ids=prompt_ids,
        seed=seed,
        sampling=spec.sampling,
        max_tokens=min(spec.max_tokens or room, max(room, 1)),
        to_boundary=False,
    )
    text, stops = IncrementalText(generator.codec), StopFilter(spec.stop)
    async with aclosing(generator.extend(request)) as stream:
        async for chunk in stream:
            new = stops.push(text.feed(chunk.token_ids))
            if chunk.finish is not None and not stops.stopped:
                new += stops.push(text.rest())
                new += stops.flush()
            finish = "stop" if stops.stopped else _finish(chunk.finish)
            if new or finish or chunk.token_ids:
                yield ChatDelta(
                    index=index,
                    text=new,
                    token_ids=chunk.token_ids,
                    finish=finish,
                    prompt_tokens=len(prompt_ids),
                )
            if stops.stopped:
                return


def _finish(reason: FinishReason | None) -> str | None:
    if reason is None:
        return None
    return "stop" if reason is FinishReason.STOP else "length"


class IncrementalText:
    """Ids in, text out, never half a character.

    Decodes a short window twice (with and without the new ids) and gives the difference, so that
    tokenizers whose pieces depend on their neighbours come out right.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._ids: list[int] = []
        self._start = 0  # window starts here
        self._told = 0  # ids whose text was given out

    def feed(self, token_ids: TokenIds) -> str:
        self._ids += token_ids
        before = self._codec.decode(self._ids[self._start : self._told])
        now = self._codec.decode(self._ids[self._start :])
        if now.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""  # the rest of the character is still to come
        self._start, self._told = self._told, len(self._ids)
        return now[len(before) :]

    def rest(self) -> str:
        """What `feed` still held back: an unfinished character at the very end."""
        before = self._codec.decode(self._ids[self._start : self._told])
        now = self._codec.decode(self._ids[self._start :])
        self._told = len(self._ids)
        return now[len(before) :]
