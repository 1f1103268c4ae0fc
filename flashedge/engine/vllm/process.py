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
from flashedge.engine.vllm.shown_cards import choose_cards, show_cards
from flashedge.engine.vllm.start_reports import receive_stages
from flashedge.engine.vllm.translate import translate_errors
from flashedge.errors import EngineDead, EngineError

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

log = logging.getLogger(__name__)

BACKOFF_S = (0.1, 1.0, 3.0, 10.0)
"""Waits before the first, second, … restart in a row. After the last one the engine has failed."""
STABLE_S = 120.0
"""A process that lives longer than this starts the count of restarts in a row anew."""
STOP_S = 1.0
"""Time that an engine gets to end by itself. It has nothing to save."""


class EngineProcess:
    """Owns an AsyncLLM and its process.

    Call `get_llm()` for each request: it raises EngineDead while there is no process. The states
    are starting -> ready -> dead -> ready … -> failed (no more restarts), and stopped.
    """

    def __init__(self, options: EngineOptions, on_restart: Callable[[], Awaitable[None]]) -> None:
        self.options = options
        self.block_bytes = 0
        """Bytes of one KV block, known once the engine is ready."""
        self._on_restart = on_restart
        self._llm: AsyncLLM | None = None
        self._state = "starting"
        self._detail: str | None = None
        self._stage: str | None = None
        self._restarts = 0
        self._restarts_in_a_row = 0
        self._ready = asyncio.Event()
        """Set when the engine is ready or has failed, so that nobody waits for a failed one."""
        self._ended: asyncio.Future[None] | None = None
        """Done when the current process has ended."""
        self._started_at = 0.0
        self._sentinel: int | None = None
        """A file descriptor that becomes readable when the process ends."""
        self._restarting: asyncio.Task[None] | None = None
        self._kv_mechanism: str | None = None  # see `inside.kv.worker.KvMemory`

    # ------------------------------------------------------------ state

    def get_llm(self) -> AsyncLLM:
        """Return the live engine. Raises EngineDead when it is down."""
        if self._llm is None or self._state != "ready":
            raise EngineDead(f"the {self.options.name} engine is {self._state}", hint=self._hint)
        return self._llm

    def health(self) -> Health:
        return Health(
            state=self._state,
            pid=self.pid,
            restarts=self._restarts,
            detail=self._detail,
            stage=self._stage,
            kv_memory="own" if self.options.owns_cards else self._kv_mechanism,
            cards=self.options.card_names,
        )

    @property
    def pid(self) -> int | None:
        return self._llm and _get_process(self._llm).pid

    async def wait_ready(self, timeout_s: float) -> None:
        """Return once the engine serves. Raises EngineDead on time-out, or if it has failed."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
                while self._state == "ready" and self.get_llm().errored:
                    self._handle_death()  # vLLM noticed it before our reader did
                    await self._ready.wait()
        except TimeoutError:
            raise EngineDead(
                f"the {self.options.name} engine did not restart within {timeout_s:g} s",
                hint=self._hint,
            ) from None
        if self._state == "failed":
            raise EngineDead(
                f"the {self.options.name} engine keeps failing: {self._detail}", hint=self._hint
            )

    @property
    def _hint(self) -> str:
        if self._state == "failed":
            return "see `flashedge logs`, then `flashedge down` and `flashedge up`"
        return "it is being restarted; try again in a few seconds"

    # ------------------------------------------------------------ start and stop

    async def start(self) -> None:
        """Start the process and load the model. Raises EngineError when that fails."""
        self._note_stage("starting its process")
        try:
            with receive_stages(self._note_stage), choose_cards(self.options.visible_cards):
                await asyncio.to_thread(self._build)
                view = await self._begin()
        except Exception as error:
            self._state, self._detail = "failed", f"{type(error).__name__}: {error}"
            self._stage = None
            self._ready.set()
            await self._shut_down()
            raise EngineError(
                f"the {self.options.name} engine did not start: {_describe_root_cause(error)}",
                hint="see `flashedge logs`; `flashedge doctor` checks memory and checkpoints",
            ) from error
        self._started_at = time.monotonic()
        self.block_bytes, self._kv_mechanism = view["block_bytes"], view["mechanism"]
        log.info("%s ready: pid %s, %s", self.options.name, self.pid, view)
        self._state, self._stage = "ready", None
        self._ready.set()

    def _note_stage(self, stage: str) -> None:
        """Show what the starting process does. The log gets each stage once, without its counts."""
        if self._stage is None or stage.partition(" (")[0] != self._stage.partition(" (")[0]:
            log.info("%s: %s", self.options.name, stage)
        self._stage = stage

    async def _begin(self) -> Any:
        """Watch the new process and get its first view. Raises EngineError if it ends instead."""
        llm = self._llm
        assert llm is not None, "_build sets it"
        self._ended = asyncio.get_running_loop().create_future()
        self._watch(llm)
        view = await self._await_while_alive(llm.engine_core.call_utility_async("flashedge_begin"))
        if view is None:
            code = _get_process(llm).exitcode
            raise EngineError(f"the process ended while it started (exit code {code})")
        return view

    async def _await_while_alive(self, call: Awaitable[Any]) -> Any:
        """Await a call to the process. Returns None if the process ends first.

        vLLM itself would let such a call wait for ever.
        """
        assert self._ended is not None, "there is a process"
        answer = asyncio.ensure_future(call)
        try:
            await asyncio.wait({answer, self._ended}, return_when=asyncio.FIRST_COMPLETED)
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
            with contextlib.suppress(psutil.NoSuchProcess):  # it may end while vLLM looks at it
                await asyncio.to_thread(self._llm.shutdown, STOP_S)
            self._llm = None
            gc.collect()  # see _build

    def _build(self) -> None:
        """Start the process and set `_llm`.

        The AsyncLLM is not returned: the thread pool would keep it alive until the interpreter
        ends, where its destructor fails with a traceback.
        """
        apply_patches(ProcessKind.DAEMON)
        from vllm.v1.engine.async_llm import AsyncLLM

        with show_cards():
            config = self.options.build_args().create_engine_config()
        self._llm = AsyncLLM.from_vllm_config(
            config,
            disable_log_stats=True,
            enable_log_requests=False,
        )

    # ------------------------------------------------------------ death and restart

    def _watch(self, llm: AsyncLLM) -> None:
        """Call `_handle_death` as soon as the process ends."""
        self._sentinel = os.dup(_get_process(llm).sentinel)
        asyncio.get_running_loop().add_reader(self._sentinel, self._handle_death)

    def _unwatch(self) -> None:
        if self._sentinel is not None:
            asyncio.get_running_loop().remove_reader(self._sentinel)
            os.close(self._sentinel)
            self._sentinel = None

    def _handle_death(self) -> None:
        """Fail the open requests at once and begin to restart."""
        self._unwatch()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
        if self._state != "ready" or self._llm is None:
            return  # `start` raises, or the process was stopped
        from vllm.v1.engine.exceptions import EngineDeadError

        code = _get_process(self._llm).exitcode
        self._detail = f"the engine process ended (exit code {code})"
        log.error("%s: %s", self.options.name, self._detail)
        self._state = "dead"
        self._ready.clear()
        dead, self._llm = self._llm, None
        dead.output_processor.propagate_error(EngineDeadError())
        self._restarting = asyncio.create_task(self._restart(dead), name="engine-restart")

    async def _restart(self, dead: AsyncLLM) -> None:
        with contextlib.suppress(Exception):  # the client of a dead process may fail in any way
            await asyncio.to_thread(dead.shutdown)
        if time.monotonic() - self._started_at > STABLE_S:
            self._restarts_in_a_row = 0
        while True:
            if self._restarts_in_a_row >= len(BACKOFF_S):
                self._state = "failed"
                self._ready.set()
                log.error(
                    "%s: no more restarts after %d in a row",
                    self.options.name,
                    self._restarts_in_a_row,
                )
                return
            await asyncio.sleep(BACKOFF_S[self._restarts_in_a_row])
            self._restarts_in_a_row += 1
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

    # ------------------------------------------------------------ calls between two engine steps

    async def call(self, method: str, *args: Any) -> Any:
        """Call a method that `inside.patches` adds to the engine core. Raises EngineDead."""
        call = self.get_llm().engine_core.call_utility_async(f"flashedge_{method}", *args)
        with translate_errors(self.options.name):
            answer = await self._await_while_alive(call)
            if answer is None:
                self.get_llm()  # raises: the process has ended
            return answer

    async def view(self) -> EngineView:
        return EngineView(**await self.call("view"), block_bytes=self.block_bytes)

    async def budget(self, kv_bytes: int) -> int:
        """Limit the KV in use to the whole blocks within `kv_bytes`. Returns the bytes granted."""
        blocks = kv_bytes // self.block_bytes
        return int(await self.call("set_quota", blocks)) * self.block_bytes


def _get_process(llm: AsyncLLM) -> Any:
    return llm.engine_core.resources.engine_manager.processes[0]


def _describe_root_cause(error: BaseException) -> str:
    """The first line of the first error in the chain of causes."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
