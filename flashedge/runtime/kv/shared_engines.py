"""Engines that tell when a request to them is open: by that the KV memory changes hands.

They pass everything on as it is. A request to an engine whose KV is away waits inside it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, aclosing

from flashedge.engine.base import (
    Chunk,
    Codec,
    ExtendRequest,
    Generator,
    ScoreRequest,
    Speculator,
    StepScores,
    Verifier,
)
from flashedge.engine.proxy import E, Passing

Open = Callable[[], AbstractContextManager[None]]


class _Shared(Passing[E]):
    """opened: a context for as long as a request is open."""

    def __init__(self, engine: E, opened: Open) -> None:
        super().__init__(engine)
        self._opened = opened


class SharedGenerator(_Shared[Generator]):
    """Implements `engine.base.Generator`."""

    @property
    def speculator(self) -> Speculator | None:
        return self._engine.speculator

    @property
    def codec(self) -> Codec:
        return self._engine.codec

    async def extend(self, request: ExtendRequest) -> AsyncGenerator[Chunk]:
        with self._opened():
            async with aclosing(self._engine.extend(request)) as stream:
                async for chunk in stream:
                    yield chunk


class SharedVerifier(_Shared[Verifier]):
    """Implements `engine.base.Verifier`."""

    async def score(self, request: ScoreRequest) -> StepScores:
        with self._opened():
            return await self._engine.score(request)
