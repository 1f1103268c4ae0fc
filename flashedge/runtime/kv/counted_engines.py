"""Engines that report their open requests, from which the KV manager knows who needs the memory.

They pass everything on unchanged. A request to an engine that is offloaded waits inside it.
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
from flashedge.engine.proxy import E, EngineProxy

CountRequest = Callable[[], AbstractContextManager[None]]
"""Makes a context that is entered for as long as a request is open."""


class _CountedEngine(EngineProxy[E]):
    def __init__(self, engine: E, count_request: CountRequest) -> None:
        super().__init__(engine)
        self._count_request = count_request


class CountedGenerator(_CountedEngine[Generator]):
    """Implements `engine.base.Generator`."""

    @property
    def speculator(self) -> Speculator | None:
        return self._engine.speculator

    @property
    def codec(self) -> Codec:
        return self._engine.codec

    async def extend(self, request: ExtendRequest) -> AsyncGenerator[Chunk]:
        with self._count_request():
            async with aclosing(self._engine.extend(request)) as stream:
                async for chunk in stream:
                    yield chunk


class CountedVerifier(_CountedEngine[Verifier]):
    """Implements `engine.base.Verifier`."""

    async def score(self, request: ScoreRequest) -> StepScores:
        with self._count_request():
            return await self._engine.score(request)
