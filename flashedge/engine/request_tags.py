"""What a request outside any run carries beside its text: who asks, for which program, how
urgently.

The API reads the tags, and the engine client puts them on the engine's request. Between the two
lie vLLM's protocol handlers, which know nothing of them, so they travel in a context variable.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTags:
    """The tags of one HTTP request."""

    client: str
    """Who asks: the name that the client gives itself, else its address."""

    seed: int
    """Of the request's sampling, in [0, MAX_SEED]. Drawn where the client gives none."""

    is_seeded: bool = False
    """Whether the client gave the seed, and so may ask for the same tokens again."""

    program: str | None = None
    """What the request is a part of: requests with the same key belong together."""

    priority: int = 0
    """Smaller is more urgent."""

    deterministic: bool = False
    """Whether the same request must give the same tokens."""


class _Scope:
    """One HTTP request: its tags, and the streams of the engine that it has opened."""

    def __init__(self, tags: RequestTags) -> None:
        self.tags = tags
        self.streams: list[AsyncGenerator[Any]] = []


_scope: ContextVar[_Scope] = ContextVar("request_scope")


@asynccontextmanager
async def tag_requests(tags: RequestTags) -> AsyncIterator[None]:
    """Tag the engine's requests that are made inside the block, and end them with it.

    A handler whose client is gone may leave its stream where it is, to be found by the garbage
    collector at some later time.
    """
    scope = _Scope(tags)
    token = _scope.set(scope)
    try:
        yield
    finally:
        _scope.reset(token)
        for stream in scope.streams:
            await stream.aclose()


def get_tags() -> RequestTags:
    """The tags of the request that is being answered. Raises LookupError outside any."""
    return _scope.get().tags


def end_with_request(stream: AsyncGenerator[T]) -> AsyncGenerator[T]:
    """Close the stream at the latest with the request that is being answered. Returns it."""
    _scope.get().streams.append(stream)
    return stream
