"""Searches that the protocols' handlers ask for, as the engines' side sees them. See
`api.protocols.search`.

A handler that wants text for a prompt reads it from an engine client. For a request that names a
search, the client starts a run instead and hands over what the run finds.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from flashedge.events import PromptRead
from flashedge.types import FinishReason, Problem, Sampling, TokenIds


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
