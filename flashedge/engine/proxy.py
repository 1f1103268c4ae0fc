"""The base of engines that stand in front of another one and pass on what they do not change."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Generic, TypeVar

from flashedge.engine.base import EngineView, Generator, Health, Verifier

E = TypeVar("E", bound=Generator | Verifier)


class EngineProxy(Generic[E]):
    """Passes on what `engine.base.Generator` and `engine.base.Verifier` have in common."""

    def __init__(self, engine: E) -> None:
        self._engine = engine

    @property
    def suspects(self) -> asyncio.Lock:
        return self._engine.suspects

    @property
    def max_model_len(self) -> int:
        return self._engine.max_model_len

    async def view(self) -> EngineView:
        return await self._engine.view()

    async def budget(self, kv_bytes: int) -> int:
        return await self._engine.budget(kv_bytes)

    async def offload(self, *, keep: bool = True) -> int:
        return await self._engine.offload(keep=keep)

    async def restore(self) -> int:
        return await self._engine.restore()

    async def rank_programs(self, keys: Sequence[str]) -> None:
        await self._engine.rank_programs(keys)

    def health(self) -> Health:
        return self._engine.health()

    async def wait_ready(self, timeout_s: float) -> None:
        await self._engine.wait_ready(timeout_s)
