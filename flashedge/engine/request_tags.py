"""What an HTTP request carries beside its text: who asks, for which program, how urgently, by which
search.

The API reads this, and the engine client acts on it. Between the two lie vLLM's protocol handlers,
which know nothing of it, so it travels in a context variable.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from flashedge.engine.searches import Searcher
from flashedge.errors import FlashEdgeError

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

    continues: bool = False
    """Whether the answer goes on with what the assistant said last."""


class TaggedRequest:
    """One HTTP request: its tags, its search, and the streams of the engine that it has opened."""

    failure: FlashEdgeError | None = None
    """Why it got no answer, if a handler was told so: some lose the reason within a stream."""

    def __init__(self, tags: RequestTags, searcher: Searcher | None) -> None:
        self.tags = tags
        self.searcher = searcher
        self.streams: list[AsyncGenerator[Any]] = []


_scope: ContextVar[TaggedRequest] = ContextVar("request_scope")


@asynccontextmanager
async def tag_requests(
    tags: RequestTags, searcher: Searcher | None = None
) -> AsyncIterator[TaggedRequest]:
    """Tag the engine's requests that are made inside the block, and end them with it.

    searcher: answers in place of the engine. None: the engine answers.
    A handler whose client is gone may leave its stream where it is, to be found by the garbage
    collector at some later time.
    """
    scope = TaggedRequest(tags, searcher)
    token = _scope.set(scope)
    try:
        yield scope
    finally:
        _scope.reset(token)
        for stream in scope.streams:
            with suppress(RuntimeError):  # it is running: its handler is being cancelled
                await stream.aclose()


def get_tags() -> RequestTags:
    """The tags of the request that is being answered. Raises LookupError outside any."""
    return _scope.get().tags


def find_searcher() -> Searcher | None:
    """The search that the request asks for, if it does. Raises LookupError outside any request."""
    return _scope.get().searcher


def get_searcher() -> Searcher:
    """Like `find_searcher`, where the request is known to ask for a search."""
    searcher = find_searcher()
    assert searcher is not None, "only requests for a search come here"
    return searcher


def note_failure(error: FlashEdgeError) -> None:
    """Keep why the request gets no answer."""
    _scope.get().failure = error


def find_failure() -> FlashEdgeError | None:
    """Why the request that is being answered gets no answer. None if it does, and outside any."""
    scope = _scope.get(None)
    return None if scope is None else scope.failure


def end_with_request(stream: AsyncGenerator[T]) -> AsyncGenerator[T]:
    """Close the stream at the latest with the request that is being answered. Returns it."""
    _scope.get().streams.append(stream)
    return stream
