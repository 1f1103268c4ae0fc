"""What the API and the engines' protocol handlers tell each other of one HTTP request.

Between the two lie vLLM's protocol handlers, which know nothing of it, so it travels in a context
variable. In order: requests outside any run; searches that a handler's engine client starts in
place of the engine (`api.protocols.search`); and the tags that say who asks, for which program, how
urgently and by which search.
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
"""Most choices that a pair generates or scores at once: the largest batch of an engine. More are
refused."""
STOP_TIMEOUT_S = 2.0
"""How long a stopping daemon waits until the clients of aborted requests know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainAsk:
    """What the scheduler of programs knows of a request when it arrives."""

    program: str
    """The key that its engine request carries: that of its program, else its own name."""
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
"""Called with each output of a request: the tokens of its prompt, its new tokens, and why choices
ended with it."""
Watch = Callable[[PlainAsk], AbstractContextManager[Follow]]
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

    def watched_by(self, watch: Watch) -> PlainRequests:
        """The same open requests; those that are opened by it have one more watch."""
        other = copy(self)
        other._watches = (*self._watches, watch)
        return other

    @property
    def is_stopping(self) -> bool:
        """Whether the daemon stops, and requests are aborted because of that."""
        return self._stopping.is_set()

    def check_admission(self, pair: str, choices: int) -> None:
        """Raises QueueFull when the pair can't take this many choices now, RequestError when it
        never can."""
        if choices > MAX_CHOICES:
            raise RequestError(f"n is {choices}; at most {MAX_CHOICES} are generated", param="n")
        if self._open[pair] + choices > MAX_CHOICES:
            raise QueueFull(f"{self._open[pair]} completions and scores are open")

    @contextmanager
    def open(self, ask: PlainAsk, abort: Callable[[], Awaitable[None]]) -> Iterator[Follow]:
        """Count a request for as long as the context is open. Yields what follows its outputs.

        abort: lets the engine end it; its last output then says so. Raises as `check_admission`.
        """
        self.check_admission(ask.pair, ask.choices)
        self._aborts.add(abort)
        self._open[ask.pair] += ask.choices
        self._idle.clear()
        try:
            with ExitStack() as stack:
                followers = [stack.enter_context(watch(ask)) for watch in self._watches]

                def follow(prompt_tokens: int, new_tokens: int, finishes: tuple[str, ...]) -> None:
                    for each in followers:
                        each(prompt_tokens, new_tokens, finishes)

                yield follow
        finally:
            self._aborts.discard(abort)
            self._open[ask.pair] -= ask.choices
            if not self._open.total():
                self._idle.set()

    async def stop(self) -> None:
        """Abort the open requests, and wait until their clients know."""
        self._stopping.set()
        await asyncio.gather(*(abort() for abort in self._aborts), return_exceptions=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._idle.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPrompt:
    """What a handler made of the request's body."""

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
"""What a search says of itself: first of its prompt, then notes for people who watch it, and last
its answer's path, followed by further ones that the client wants to see. Each path is one chunk,
from the end of the prompt on."""


class Searcher(Protocol):
    """The search that one HTTP request asks for."""

    @property
    def model(self) -> str:
        """The model's name in the request."""

    def check_admission(self) -> None:
        """Raises QueueFull when too many runs wait."""

    def take_conversation(self, problem: Problem) -> None:
        """Take the conversation as the verifier will see it. Called before `start`."""

    def start(self, prompt: SearchPrompt) -> AsyncGenerator[SearchItem]:
        """Queue the run, and follow it. Raises what `Service.submit` raises; while it streams,
        what ended the run."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTags:
    client: str
    """Who asks: the name that the client gives itself, else its address."""
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
    """Why it got no answer, if a handler was told so: some lose the reason within a stream."""


_request: ContextVar[TaggedRequest] = ContextVar("_request")


@asynccontextmanager
async def tag_requests(
    tags: RequestTags, searcher: Searcher | None = None
) -> AsyncIterator[TaggedRequest]:
    """Tag the engine's requests that are made inside the block, and end them with it.

    searcher: answers in place of the engine. None: the engine answers.
    A handler whose client is gone may leave its stream to the garbage collector.
    """
    request = TaggedRequest(tags, searcher)
    token = _request.set(request)
    try:
        yield request
    finally:
        _request.reset(token)
        for stream in request.streams:
            with suppress(RuntimeError):  # it is running: its handler is being cancelled
                await stream.aclose()


def get_request() -> TaggedRequest:
    """The request that is being answered. Raises LookupError outside any."""
    return _request.get()


def get_searcher() -> Searcher:
    """The search of a request that is known to ask for one."""
    searcher = get_request().searcher
    assert searcher is not None, "only requests for a search come here"
    return searcher


def end_with_request(stream: AsyncGenerator[T]) -> AsyncGenerator[T]:
    """Close the stream with the request that is being answered, if not before. Returns it."""
    get_request().streams.append(stream)
    return stream
