"""The life of one engine process: start, watch, restart with back-off, stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from flashedge.engine.base import EngineView, Health
from flashedge.engine.vllm.engine_options import EngineOptions
from flashedge.engine.vllm.inside.patches import ProcessKind, apply_patches
from flashedge.engine.vllm.translate import translated
from flashedge.errors import EngineDead, EngineError

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

log = logging.getLogger(__name__)

BACKOFF_S = (0.1, 1.0, 3.0, 10.0)  # waits before the 1st, 2nd, … restart in a row
CALM_S = 120.0  # a life longer than this resets the count
STOP_S = 1.0  # what an engine gets to end by itself; it has nothing to save


class EngineProcess:
    """Owns an AsyncLLM and its process. Use `llm()` for each request: it raises EngineDead while
    there is none. States: starting -> ready -> dead -> ready … -> failed (given up)."""

    def __init__(self, options: EngineOptions, on_restart: Callable[[], Awaitable[None]]) -> None:
        self.options = options
        self._on_restart = on_restart
        self._llm: AsyncLLM | None = None
        self._state = "starting"
        self._detail: str | None = None
        self._restarts = 0
        self._in_a_row = 0
        self._ready = asyncio.Event()
        self._gone: asyncio.Future[None] | None = None  # done when the process has ended
        self._started_at = 0.0
        self._watched: int | None = None
        self._restarting: asyncio.Task[None] | None = None
        self.block_bytes = 0
        self._kv_mechanism: str | None = None  # see `kv_memory.KvMemory`

    # ------------------------------------------------------------ state

    def llm(self) -> AsyncLLM:
        """The live engine. Raises EngineDead when it is down."""
        if self._llm is None or self._state != "ready":
            raise EngineDead(f"the {self.options.name} engine is {self._state}", hint=self._hint())
        return self._llm

    def health(self) -> Health:
        return Health(
            state=self._state,
            pid=self.pid,
            restarts=self._restarts,
            detail=self._detail,
            kv_memory=self._kv_mechanism,
        )

    @property
    def pid(self) -> int | None:
        return self._llm and _process_of(self._llm).pid

    async def wait_ready(self, timeout_s: float) -> None:
        """Returns once the engine serves; raises EngineDead on time-out or when given up."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
                while self._state == "ready" and self.llm().errored:
                    self._died()  # vLLM's own watcher saw it first
                    await self._ready.wait()
        except TimeoutError:
            raise EngineDead(
                f"the {self.options.name} engine did not come back in {timeout_s:g} s",
                hint=self._hint(),
            ) from None
        if self._state == "failed":
            raise EngineDead(
                f"the {self.options.name} engine keeps failing: {self._detail}", hint=self._hint()
            )

    def _hint(self) -> str:
        if self._state == "failed":
            return "see `flashedge logs`, then `flashedge down` and `flashedge up`"
        return "it is being restarted; try again in a few seconds"

    # ------------------------------------------------------------ life

    async def start(self) -> None:
        """Start the process and load the model. Raises EngineError when that fails."""
        try:
            await asyncio.to_thread(self._build)
            view = await self._first_answer()
        except Exception as error:
            self._state, self._detail = "failed", f"{type(error).__name__}: {error}"
            self._ready.set()
            await self._shut_down()
            raise EngineError(
                f"the {self.options.name} engine did not start: {_root_line(error)}",
                hint="see `flashedge logs`; `flashedge doctor` checks memory and checkpoints",
            ) from error
        self._started_at = time.monotonic()
        self.block_bytes, self._kv_mechanism = view["block_bytes"], view["mechanism"]
        log.info("%s ready: pid %s, %s", self.options.name, self.pid, view)
        self._state = "ready"
        self._ready.set()

    async def _first_answer(self) -> Any:
        """What the engine says of itself. Raises EngineError when the process ends instead."""
        llm = self._llm
        assert llm is not None, "_build made it"
        self._gone = asyncio.get_running_loop().create_future()
        self._watch(llm)
        view = await self._unless_gone(llm.engine_core.call_utility_async("flashedge_begin"))
        if view is None:
            code = _process_of(llm).exitcode
            raise EngineError(f"the process ended while it started (exit code {code})")
        return view

    async def _unless_gone(self, call: Awaitable[Any]) -> Any:
        """The call's answer, None if the process ends first: vLLM would let it wait for ever."""
        assert self._gone is not None, "there is a process"
        answer = asyncio.ensure_future(call)
        try:
            await asyncio.wait({answer, self._gone}, return_when=asyncio.FIRST_COMPLETED)
            return answer.result() if answer.done() else None
        finally:
            answer.cancel()

    async def stop(self) -> None:
        self._state = "stopped"
        if self._restarting:
            self._restarting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._restarting
        await self._shut_down()

    async def _shut_down(self) -> None:
        import psutil

        self._unwatch()
        if self._llm is not None:
            if self._llm.output_handler is not None:
                self._llm.output_handler.cancel()  # else it logs the end as the engine's death
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended while vLLM looked at it
                await asyncio.to_thread(self._llm.shutdown, STOP_S)
            self._llm = None
            gc.collect()  # see _build

    def _build(self) -> None:
        """Sets `_llm`. Not by return value: the thread pool would keep it alive past its end, and
        its destructor fails, with a traceback, in a dying interpreter."""
        apply_patches(ProcessKind.DAEMON)
        from vllm.v1.engine.async_llm import AsyncLLM

        self._llm = AsyncLLM.from_vllm_config(
            self.options.args().create_engine_config(),
            disable_log_stats=True,
            enable_log_requests=False,
        )

    # ------------------------------------------------------------ death

    def _watch(self, llm: AsyncLLM) -> None:
        """Notice the process's end at once: its sentinel becomes readable."""
        self._watched = os.dup(_process_of(llm).sentinel)
        asyncio.get_running_loop().add_reader(self._watched, self._died)

    def _unwatch(self) -> None:
        if self._watched is not None:
            asyncio.get_running_loop().remove_reader(self._watched)
            os.close(self._watched)
            self._watched = None

    def _died(self) -> None:
        self._unwatch()
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)
        if self._state != "ready" or self._llm is None:
            return  # still starting, or stopped: who waits for it is told
        from vllm.v1.engine.exceptions import EngineDeadError

        code = _process_of(self._llm).exitcode
        self._detail = f"the engine process ended (exit code {code})"
        log.error("%s: %s", self.options.name, self._detail)
        self._state = "dead"
        self._ready.clear()
        dead, self._llm = self._llm, None
        dead.output_processor.propagate_error(EngineDeadError())
        self._restarting = asyncio.create_task(self._restart(dead), name="engine-restart")

    async def _restart(self, dead: AsyncLLM) -> None:
        with contextlib.suppress(Exception):  # a half-dead client may fail in any way; it is gone
            await asyncio.to_thread(dead.shutdown)
        if time.monotonic() - self._started_at > CALM_S:
            self._in_a_row = 0
        while True:
            if self._in_a_row >= len(BACKOFF_S):
                self._state = "failed"
                self._ready.set()
                log.error("%s: given up after %d restarts", self.options.name, self._in_a_row)
                return
            await asyncio.sleep(BACKOFF_S[self._in_a_row])
            self._in_a_row += 1
            self._ready.clear()
            try:
                await self.start()
            except EngineError as error:
                self._state = "dead"
                self._ready.clear()
                log.error("%s: restart failed: %s", self.options.name, error)
                continue
            self._restarts += 1
            await self._on_restart()
            return

    # ------------------------------------------------------------ control

    async def call(self, method: str, *args: Any) -> Any:
        """Run a utility method of the scheduler between two engine steps."""
        call = self.llm().engine_core.call_utility_async(f"flashedge_{method}", *args)
        with translated(self.options.name):
            answer = await self._unless_gone(call)
            if answer is None:
                self.llm()  # raises: it died
            return answer

    async def view(self) -> EngineView:
        return EngineView(**await self.call("view"), block_bytes=self.block_bytes)

    async def budget(self, kv_bytes: int) -> int:
        """Bound the KV in use to whole blocks within `kv_bytes`; returns the bytes granted."""
        blocks = kv_bytes // self.block_bytes
        return int(await self.call("set_quota", blocks)) * self.block_bytes


def _process_of(llm: AsyncLLM) -> Any:
    return llm.engine_core.resources.engine_manager.processes[0]


def _root_line(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
