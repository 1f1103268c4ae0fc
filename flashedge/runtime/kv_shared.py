"""Engines that tell when a request to them is open: by that the KV memory changes hands.

They pass everything on as it is. A request to an engine whose KV is away waits inside it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, aclosing
from typing import Generic, TypeVar

from flashedge.engine.base import (
    Chunk,
    Codec,
    EngineView,
    ExtendRequest,
    Generator,
    Health,
    ScoreRequest,
    Speculator,
    StepScores,
    Verifier,
)

E = TypeVar("E", bound=Generator | Verifier)
Open = Callable[[], AbstractContextManager[None]]


class _Shared(Generic[E]):
    """opened: a context for as long as a request is open."""

    def __init__(self, engine: E, opened: Open) -> None:
        self._engine = engine
        self._opened = opened

    @property
    def max_model_len(self) -> int:
        return self._engine.max_model_len

    async def view(self) -> EngineView:
        return await self._engine.view()

    async def budget(self, kv_bytes: int, max_sequences: int | None = None) -> int:
        return await self._engine.budget(kv_bytes, max_sequences)

    async def offload(self, *, keep: bool = True) -> int:
        return await self._engine.offload(keep=keep)

    async def restore(self) -> int:
        return await self._engine.restore()

    def health(self) -> Health:
        return self._engine.health()

    async def wait_ready(self, timeout_s: float) -> None:
        await self._engine.wait_ready(timeout_s)


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
