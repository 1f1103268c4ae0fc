"""What the API tells the engine clients of vLLM's protocol handlers about one HTTP request.

The handlers pass none of this on, so it travels in a context variable. This file has the open
requests outside any run, the search that an engine client may start in place of the engine
(`api.protocols.search`), and the tags: who asks, for which program and how urgently.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import (
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from flashedge.engine.base import Chunk
from flashedge.errors import FlashEdgeError, QueueFull, RequestError
from flashedge.events import PromptRead
from flashedge.types import Problem, Sampling, TokenIds

MAX_CHOICES = 256
"""Most choices that a pair generates or scores at once: the default batch on a CPU."""
STOP_TIMEOUT_S = 2.0
"""How long a stopping daemon waits for aborted requests. Chosen by hand: a tenth would cut off
answers that are being sent; ten times as long is all that `flashedge down` waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRequest:
    """What the scheduler of programs knows of a request when it arrives."""

    program: str
    """The key that its engine requests carry: its program's, or if it has none, its own name."""
    pair: str = ""
    client: str = ""
    priority: int = 0
    choices: int = 1
    prompt_ids: TokenIds = ()
    max_tokens: int
    """Most tokens of one choice."""
    is_score: bool = False
    """Whether the verifier scores the choices, and nothing is generated."""


Follow = Callable[[int, int, tuple[str, ...]], None]
"""Called for each output of a request with the number of its prompt's tokens, the number of its new
tokens, and the finish reasons of the choices that it ends."""
Watch = Callable[[PlainRequest], AbstractContextManager[Follow]]
"""Watches a request for as long as the context is open."""


class PlainRequests:
    """All open requests outside any run."""

    def __init__(self, *watches: Watch) -> None:
        self._watches = watches
        self._open: Counter[str] = Counter()
        """Choices that are being generated or scored, by pair."""
        self._aborts: set[Callable[[], Awaitable[None]]] = set()
        self._idle, self._stopping = asyncio.Event(), asyncio.Event()
        self._idle.set()

    def with_watch(self, watch: Watch) -> PlainRequests:
        """A view of the same open requests, with one more watch of those that it opens."""
        other = copy(self)
        other._watches = (*self._watches, watch)
        return other

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called, so that requests are being aborted."""
        return self._stopping.is_set()

    def check_admission(self, pair: str, choices: int) -> None:
        """Raise QueueFull if the choices do not fit now, RequestError if they can't ever fit."""
        if choices > MAX_CHOICES:
            raise RequestError(f"n is {choices}; at most {MAX_CHOICES} are generated", param="n")
        if self._open[pair] + choices > MAX_CHOICES:
            raise QueueFull(f"{self._open[pair]} completions and scores are open")

    @contextmanager
    def open(self, ask: PlainRequest, abort: Callable[[], Awaitable[None]]) -> Iterator[Follow]:
        """Count a request while the context is open. Yields the function to call for each output.

        abort: makes the engine end the request. Raises as `check_admission`.
        """
        self.check_admission(ask.pair, ask.choices)
        self._aborts.add(abort)
        self._open[ask.pair] += ask.choices
        self._idle.clear()
        try:
            with ExitStack() as stack:
                followers = [stack.enter_context(watch(ask)) for watch in self._watches]

                def follow(prompt_tokens: int, new_tokens: int, finishes: tuple[str, ...]) -> None:
                    for follower in followers:
                        follower(prompt_tokens, new_tokens, finishes)

                yield follow
        finally:
            self._aborts.discard(abort)
            self._open[ask.pair] -= ask.choices
            if not self._open.total():
                self._idle.set()

    async def stop(self) -> None:
        """Abort the open requests, and wait until they are closed, at most STOP_TIMEOUT_S."""
        self._stopping.set()
        await asyncio.gather(*(abort() for abort in self._aborts), return_exceptions=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._idle.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPrompt:
    """What vLLM's handler made of the body of a request that asks for a search."""

    token_ids: TokenIds
    """The conversation with its tools, the assistant's turn opened."""
    sampling: Sampling
    max_tokens: int
    """Most generated tokens of a path."""
    choices: int = 1
    """How many paths the client wants to see."""
    guidance: Mapping[str, Any] | None = None
    """What every path must match. See `ExtendRequest.guidance`."""


SearchItem = PromptRead | str | tuple[Chunk, ...]
"""What a search streams: a PromptRead first, then notes (str) for people who watch it, and last the
paths that the client sees, the answer's first. A path's chunk has all of its generated tokens."""


class Searcher(Protocol):
    """The search that one HTTP request asks for."""

    @property
    def model(self) -> str:
        """The model's name in the request."""

    def check_admission(self) -> None:
        """Raise QueueFull when too many runs wait."""

    def take_conversation(self, problem: Problem) -> None:
        """Take the conversation as the verifier will see it. Called before `start`."""

    def start(self, prompt: SearchPrompt) -> AsyncGenerator[SearchItem]:
        """Queue the run and stream it. Raises as `Service.submit`, or what ended the run."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTags:
    """What every engine request of one HTTP request carries."""

    client: str
    """The name that the client gives itself, or else its address."""
    seed: int
    """In [0, MAX_SEED]. Drawn where the client gives none."""
    is_seeded: bool = False
    """Whether the client gave the seed, and so may ask for the same tokens again."""
    program: str | None = None
    """Requests with the same key belong together."""
    priority: int = 0
    """Smaller is more urgent."""
    deterministic: bool = False
    """Whether the same request must give the same tokens."""
    continues: bool = False
    """Whether the answer goes on with what the assistant said last."""


@dataclass(slots=True)
class TaggedRequest:
    """One HTTP request, with the streams of the engine that it has opened."""

    tags: RequestTags
    searcher: Searcher | None
    streams: list[AsyncGenerator[Any]] = field(default_factory=list)
    failure: FlashEdgeError | None = None
    """Why it got no answer. Kept here because some handlers lose the reason within a stream."""


_request: ContextVar[TaggedRequest] = ContextVar("_request")


@asynccontextmanager
async def tag_requests(
    tags: RequestTags, searcher: Searcher | None = None
) -> AsyncIterator[TaggedRequest]:
    """Tag the engine requests that are made inside the block, and close their streams after it.

    A handler whose client is gone would leave its stream to the garbage collector.
    searcher: answers in place of the engine. None lets the engine answer.
    """
    request = TaggedRequest(tags, searcher)
    token = _request.set(request)
    try:
        yield request
    finally:
        _request.reset(token)
        for stream in request.streams:
            with suppress(RuntimeError):  # a cancelled handler still runs the stream
                await stream.aclose()


def get_request() -> TaggedRequest:
    """The request that is being answered. Raises LookupError outside any."""
    return _request.get()


def get_searcher() -> Searcher:
    """The search that the request asks for. Only for requests that ask for one."""
    searcher = get_request().searcher
    assert searcher is not None, "only requests for a search come here"
    return searcher


def end_with_request(stream: AsyncGenerator[T]) -> AsyncGenerator[T]:
    """Let the stream be closed when the request that is being answered ends. Returns the stream."""
    get_request().streams.append(stream)
    return stream
