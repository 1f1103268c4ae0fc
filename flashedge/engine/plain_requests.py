"""Requests outside any run, as the engines' side sees who counts them. See
`runtime.plain_requests`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from flashedge.types import TokenIds

AsgiApp = Callable[
    [
        MutableMapping[str, Any],
        Callable[[], Awaitable[MutableMapping[str, Any]]],
        Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ],
    Awaitable[None],
]
"""An application that answers HTTP requests: (scope, receive, send)."""


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
    """One open request."""

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
        """See `engine.plain_requests`."""
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
