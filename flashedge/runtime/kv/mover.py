"""Move the KV memory between the two engines: set budgets, offload, restore.

The engine that shrinks goes first, so that both budgets never add up to more than there is. An
engine that has no memory for a larger budget keeps the one it had: the recorded split holds what
was granted, and the larger budget is requested again with the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from flashedge.engine.base import Generator, Verifier
from flashedge.errors import FlashEdgeError
from flashedge.events import Event, Offloaded, Restored
from flashedge.scheduling.kv.split import EngineRole, HostLink, KvSplit

log = logging.getLogger(__name__)

MEASURED_BYTES = 4 << 20
"""Bytes that must have moved before the link's measured speed replaces its assumed one."""
ROUNDED_BLOCKS = 2
"""A grant may lack this many blocks: budgets are whole blocks, and vLLM never uses one block."""


class KvMover:
    """Carries out what is decided, one move at a time. An engine that is down catches up when it
    restarts, so its errors are only logged."""

    def __init__(
        self,
        engines: Mapping[EngineRole, Generator | Verifier],
        block_bytes: Mapping[EngineRole, int],
        emit: Callable[[Event], None],
    ) -> None:
        self._engines = engines
        self._block_bytes = block_bytes
        self._emit = emit
        self._granted: dict[EngineRole, tuple[int, int]] = {}  # (bytes, restarts of the engine)
        self.offloaded: EngineRole | None = None
        """The engine whose KV waits in host memory. Its requests wait too."""
        self.offloads = 0
        self.divisions = 0
        """How often the memory was divided differently."""
        self._dividing_s = 0.0
        self._moved_bytes = 0
        self._moving_s = 0.0

    @property
    def division_s(self) -> float:
        """Mean seconds of a division."""
        return self._dividing_s / max(1, self.divisions)

    def measure_link(self, link: HostLink | None) -> HostLink | None:
        """Replace the link's assumed speed by the measured one, once enough has moved."""
        if link is None or self._moved_bytes < MEASURED_BYTES:
            return link
        return replace(link, bytes_per_s=self._moved_bytes / self._moving_s)

    async def divide(self, last: KvSplit, split: KvSplit) -> KvSplit:
        """Set both budgets. Return the split in effect: `split`, less what was refused."""
        generator, verifier = EngineRole.GENERATOR, EngineRole.VERIFIER
        wanted = {generator: split.generator_bytes, verifier: split.verifier_bytes}
        before = {generator: last.generator_bytes, verifier: last.verifier_bytes}
        clock = asyncio.get_running_loop().time
        began = clock()
        given: dict[EngineRole, int] = {}
        for role in sorted(wanted, key=lambda role: wanted[role] - before[role]):
            given[role] = await self._set_budget(role, wanted[role])
        split = replace(split, generator_bytes=given[generator], verifier_bytes=given[verifier])
        if not last.has_same_bytes(split):
            self.divisions += 1
            self._dividing_s += clock() - began
        return split

    async def offload(self, role: EngineRole, split: KvSplit) -> None:
        """Pause an engine and free its memory. Its KV is saved or dropped, as `split` says."""
        is_generator = role is EngineRole.GENERATOR
        keep = split.generator_saved if is_generator else split.verifier_saved
        seconds, saved = await self._time(self._engines[role].offload(keep=keep))
        self.offloaded = role
        self.offloads += 1
        self._emit(Offloaded(engine=role.value, saved_bytes=saved, seconds=seconds))

    async def restore(self, role: EngineRole) -> None:
        """Give an engine its memory back and resume it."""
        seconds, loaded = await self._time(self._engines[role].restore())
        if self.offloaded is role:
            self.offloaded = None
        self._emit(Restored(engine=role.value, loaded_bytes=loaded, seconds=seconds))
        await self._check_quota(role)

    async def _set_budget(self, role: EngineRole, kv_bytes: int) -> int:
        """Return the bytes in effect: `kv_bytes`, or less if the engine has no memory for more."""
        engine = self._engines[role]
        restarts = engine.health().restarts
        if self._granted.get(role) == (kv_bytes, restarts):
            return kv_bytes
        self._granted.pop(role, None)
        granted = await self._request(engine.budget(kv_bytes))
        if granted is None:
            view = await self._request(engine.view())
            if view is None:
                return kv_bytes  # the engine is down: the next process gets it
            granted = view.quota_blocks * view.block_bytes  # it refused
        if self._is_short(role, granted, kv_bytes):
            return int(granted)
        self._granted[role] = kv_bytes, restarts
        return kv_bytes

    async def _check_quota(self, role: EngineRole) -> None:
        """Forget the recorded budget if the engine had to resume with a smaller one."""
        if role in self._granted and (view := await self._request(self._engines[role].view())):
            kv_bytes, _ = self._granted[role]
            if self._is_short(role, view.quota_blocks * view.block_bytes, kv_bytes):
                del self._granted[role]

    def _is_short(self, role: EngineRole, granted: int, kv_bytes: int) -> bool:
        return bool(granted + ROUNDED_BLOCKS * self._block_bytes[role] < kv_bytes)

    async def _time(self, move: Awaitable[int]) -> tuple[float, int]:
        """(seconds, bytes) of a move over the link."""
        clock = asyncio.get_running_loop().time
        began = clock()
        moved = int(await self._request(move) or 0)
        seconds = clock() - began
        if moved:
            self._moved_bytes += moved
            self._moving_s += seconds
        return seconds, moved

    async def _request(self, request: Awaitable[Any]) -> Any:
        """Wait for the engine's answer. None if it is down."""
        try:
            return await request
        except FlashEdgeError as error:
            log.warning("the KV memory of an engine was not moved: %s", error.line)
            return None
