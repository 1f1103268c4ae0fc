"""Generates without a search: streams text, cut at stop strings."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from flashedge.engine.base import ExtendRequest, Generator
from flashedge.errors import RequestError
from flashedge.runtime.incremental_text import IncrementalText
from flashedge.runtime.request.checks import check_float, check_int, check_template_variables
from flashedge.runtime.request.spec import check_messages
from flashedge.runtime.stopping import StopFilter
from flashedge.runtime.thinking import Thinking
from flashedge.types import MAX_SEED, FinishReason, Message, Sampling, TokenIds

MAX_STOPS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSpec:
    """A request for completions without a search."""

    messages: tuple[Message, ...]
    sampling: Sampling

    seed: int | None = None
    """None draws a seed."""

    max_tokens: int | None = None
    """None generates up to the end of the context."""

    stop: tuple[str, ...] = ()
    n: int = 1
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """See `RunSpec`."""

    def __post_init__(self) -> None:
        """Raises RequestError that names the first wrong field."""
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
        check_template_variables("chat_template_kwargs", self.chat_template_kwargs)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatDelta:
    """New text of one choice."""

    index: int
    """Which of the request's n choices it continues."""

    text: str
    token_ids: TokenIds

    reasoning: str = ""
    """New text of the model's thinking, which is no part of `text`."""

    finish: str | None
    """stop or length on the choice's last delta, else None."""

    prompt_tokens: int


async def stream_choice(
    generator: Generator, spec: ChatSpec, prompt_ids: TokenIds, index: int, seed: int
) -> AsyncGenerator[ChatDelta]:
    """Stream one choice; its last delta carries `finish`. Closing the stream cancels it."""
    room = generator.max_model_len - len(prompt_ids)
    request = ExtendRequest(
        token_ids=prompt_ids,
        seed=seed,
        sampling=spec.sampling,
        max_tokens=min(spec.max_tokens or room, max(room, 1)),
        to_boundary=False,
    )
    text, stops = IncrementalText(generator.codec), StopFilter(spec.stop)
    parser = Thinking.of_prompt(generator.codec, prompt_ids).parse()
    async with aclosing(generator.extend(request)) as stream:
        async for chunk in stream:
            new = stops.push(text.feed(chunk.token_ids))
            if chunk.finish is not None and not stops.stopped:
                new += stops.push(text.flush())
                new += stops.flush()
            finish = "stop" if stops.stopped else _convert_finish(chunk.finish)
            reasoning, answer = parser.push(new)
            if finish:
                last_reasoning, last_answer = parser.flush()
                reasoning, answer = reasoning + last_reasoning, answer + last_answer
            if new or finish or chunk.token_ids:
                yield ChatDelta(
                    index=index,
                    text=answer,
                    reasoning=reasoning,
                    token_ids=chunk.token_ids,
                    finish=finish,
                    prompt_tokens=len(prompt_ids),
                )
            if stops.stopped:
                return


def _convert_finish(reason: FinishReason | None) -> str | None:
    if reason is None:
        return None
    return "stop" if reason is FinishReason.STOP else "length"
