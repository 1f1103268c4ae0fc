"""What the API and the engines' protocol handlers tell each other of one HTTP request.

Between the two lie vLLM's protocol handlers, which know nothing of it, so it travels in a context
variable. In order: requests outside any run, which `runtime.plain_requests` counts; searches that a
handler's engine client starts in place of the engine (`api.protocols.search`); and the tags that
say who asks, for which program, how urgently and by which search.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from flashedge.errors import FlashEdgeError
from flashedge.events import PromptRead
from flashedge.types import FinishReason, Problem, Sampling, TokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainAsk:
    """What the scheduler of programs knows of a request when it arrives."""

    program: str
    """The key that its engine request carries: that of the program it is a part of, else its own
    name."""
    pair: str = ""
    client: str = ""
    priority: int = 0
    choices: int = 1
    prompt_ids: TokenIds = ()
    max_tokens: int
    """Most tokens of one choice."""
    is_score: bool = False
    """Whether the verifier scores the choices, and nothing is generated."""


class PlainRequest(Protocol):
    def note(self, *, prompt_tokens: int, new_tokens: int, finishes: tuple[str, ...]) -> None:
        """An output has come. finishes: why choices ended with it."""
        ...


class PlainRequests(Protocol):
    """All open requests outside any run."""

    def check_admission(self, pair: str, choices: int) -> None:
        """Raises QueueFull when a request of so many choices is too many for this pair."""
        ...

    def open(
        self, ask: PlainAsk, abort: Callable[[], Awaitable[None]]
    ) -> AbstractContextManager[PlainRequest]:
        """Count a request for as long as the context is open.

        abort: lets the engine end it. Its last output then says so.
        """
        ...

    @property
    def is_stopping(self) -> bool:
        """Whether the daemon stops, and requests are aborted because of that."""
        ...


class PlainRequestsProxy:
    """The base of those that stand in front of others and note more of each request."""

    def __init__(self, plain: PlainRequests) -> None:
        self._plain = plain

    @property
    def is_stopping(self) -> bool:
        return self._plain.is_stopping

    def check_admission(self, pair: str, choices: int) -> None:
        """See `runtime.plain_requests`."""
        self._plain.check_admission(pair, choices)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolOptions:
    """How the HTTP protocols serve a generator."""

    name: str
    """The model's name for clients: the pair's."""
    system_prompt: str | None = None
    """Of conversations that begin without one."""
    tool_parser: str | None = None
    """vLLM's parser of the model's tool calls. None: no tools."""
    reasoning_parser: str | None = None
    """vLLM's parser of the model's thinking."""
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPrompt:
    """What a handler made of the request's body."""

    token_ids: TokenIds
    """The conversation with its tools by the chat template, the assistant's turn opened."""
    sampling: Sampling
    max_tokens: int
    """Most generated tokens of a path."""
    choices: int = 1
    """How many paths the client wants to see."""
    guidance: Mapping[str, Any] | None = None
    """What every path must match. See `ExtendRequest.guidance`."""


@dataclass(frozen=True, slots=True)
class Note:
    """What the search does, for people who watch it."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPath:
    """One path of a finished search, from the end of the prompt on."""

    token_ids: TokenIds
    logprobs: tuple[float, ...]
    """(len(token_ids),)"""
    finish: FinishReason


@dataclass(frozen=True, slots=True)
class Found:
    """The end of a search: its answer's path, then further ones that the client wants to see."""

    paths: tuple[FoundPath, ...]


SearchItem = PromptRead | Note | Found
"""What a search says of itself: first of its prompt, then notes, and what it found last."""


class Searcher(Protocol):
    """The search that one HTTP request asks for."""

    @property
    def model(self) -> str:
        """The model's name in the request."""
        ...

    def check_admission(self) -> None:
        """Raises QueueFull when too many runs wait."""
        ...

    def take_conversation(self, problem: Problem) -> None:
        """Take the conversation as the verifier will see it. Called before `start`."""
        ...

    def start(self, prompt: SearchPrompt) -> AsyncGenerator[SearchItem]:
        """Queue the run, and follow it.

        Raises what `Service.submit` raises; while it streams, what ended the run.
        """
        ...


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTags:
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
