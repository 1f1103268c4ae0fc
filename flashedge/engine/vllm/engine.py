"""The base of both vLLM engines: start and stop, health, and KV memory."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from flashedge.engine.base import EngineView, Health
from flashedge.engine.vllm.engine_options import EngineOptions
from flashedge.engine.vllm.process.restarts import EngineProcess
from flashedge.errors import EngineDead
from flashedge.scheduling.determinism import PassShape


class VllmEngine:
    """Implements `engine.base.Engine` on one engine process.

    A restarted process gets the last budget again and stays offloaded if it was."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.process = EngineProcess(options, self._configure_restarted)
        self._budget: int | None = None
        self._is_offloaded = False
        self._order: tuple[str, ...] = ()
        self._replay_shape: PassShape | None = None
        self.suspect_lock = asyncio.Lock()
        """See `engine.base`."""

    @property
    def max_model_len(self) -> int:
        return self.options.max_model_len

    async def start(self, *, shrinks: bool = True) -> None:
        """Start the process and load the model. Raises EngineError if that fails.

        shrinks: whether to start again with a smaller batch if memory is short."""
        await self.process.start(shrinks=shrinks)

    @property
    def has_smaller_batch(self) -> bool:
        """Whether the batch is smaller than configured, because memory was short."""
        return self.process.options != self.options

    async def stop(self) -> None:
        await self.process.stop()

    async def measure_memory(self) -> dict[str, int]:
        """Measure the memory of the largest step, before any request. Returns bytes by the names of
        `inside.step_memory`. Raises EngineError, also if the step does not fit the memory."""
        found: dict[str, int] = await self.process.call("measure_memory")
        return found

    async def view(self) -> EngineView:
        return await self.process.view()

    async def budget(self, kv_bytes: int) -> int:
        """See `engine.base`. Grants at least room for one request of full length."""
        self._budget = kv_bytes  # if the engine is down, the next process gets it
        self._limit_start()
        self._budget = await self.process.budget(kv_bytes)
        self._limit_start()  # by what was granted: the other engine may have the rest
        return self._budget

    def _limit_start(self) -> None:
        """Let a restarted process start with its budget, or with next to nothing if offloaded."""
        self.process.start_limit_bytes = 0 if self._is_offloaded else self._budget

    async def offload(self, *, keep: bool = True, share: float = 1.0) -> int:
        self._is_offloaded = True
        self._limit_start()
        return int(await self.process.call("offload", keep, share))

    async def restore(self, *, share: float = 1.0) -> int:
        self._is_offloaded &= share < 1
        self._limit_start()
        return int(await self.process.call("restore", share))

    async def rank_programs(self, keys: Sequence[str]) -> None:
        self._order = tuple(keys)
        with suppress(EngineDead):  # the next process gets it
            await self.process.call("rank_programs", list(keys))

    async def set_replay_shape(self, shape: PassShape) -> None:
        """Set the shape of the passes of deterministic requests, none of which may be open. Raises
        EngineDead."""
        self._replay_shape = shape
        await self.process.call("set_replay_shape", shape.to_json())

    async def _configure_restarted(self) -> None:
        """Bring a restarted process to the state of its predecessor."""
        if self._is_offloaded:  # first, so that the budget claims no memory
            await self.offload(keep=False)
        if self._budget is not None:
            await self.process.budget(self._budget)
        if self._order:
            await self.process.call("rank_programs", list(self._order))
        if self._replay_shape is not None:
            await self.process.call("set_replay_shape", self._replay_shape.to_json())

    def health(self) -> Health:
        return self.process.health()

    async def wait_ready(self, timeout_s: float) -> None:
        await self.process.wait_ready(timeout_s)
