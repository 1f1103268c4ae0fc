"""Keeps an engine running: starts its process, restarts it with back-off, and stops it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flashedge.engine.base import EngineView, Health
from flashedge.engine.vllm.engine_options import EngineOptions
from flashedge.engine.vllm.inside.step_record import find_root, is_memory_short
from flashedge.engine.vllm.process.live_process import LiveProcess, ProcessEnded
from flashedge.engine.vllm.process.start import choose_start_method, give_up_forks
from flashedge.engine.vllm.translate import translate_errors
from flashedge.errors import EngineDead, EngineError
from flashedge.models.memory.engine_memory import choose_graph_sizes

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

log = logging.getLogger(__name__)

BACKOFF_S = (0.1, 1.0, 3.0, 10.0, 30.0, 60.0)
"""Seconds before the first, second, … restart in a row. The last one repeats.

A driver that was reset or a card that another program filled may be well again after minutes.
"""
STABLE_S = 30.0
"""When a process has served for longer, its next restart counts as the first in a row. Chosen by
hand: after a tenth, an engine that dies at its first requests would be restarted without a pause;
with ten times as long, one that dies every few minutes would be down for a minute each time."""
LEAST_SEQUENCES, LEAST_TOKENS = 8, 512
"""The smallest batch after a shortage of memory: a smaller one would be slow and save little."""


def halve_batch(options: EngineOptions) -> EngineOptions | None:
    """Halve the sequences and tokens of a step. Returns None if both are at their minimum.

    A step's memory grows with both: activations with the tokens, logits and graphs with the
    sequences. Where kernels are batch-invariant, no result depends on them.
    """
    now = options.max_num_seqs, options.max_batched_tokens
    sequences, tokens = (
        max(count // 2, min(count, least))
        for count, least in zip(now, (LEAST_SEQUENCES, LEAST_TOKENS), strict=True)
    )
    if (sequences, tokens) == now:
        return None
    # A generator's graphs are sized in sequences, a verifier's in tokens.
    graphs = tuple(size for size in options.graph_sizes if size <= tokens)
    if options.graph_sizes and options.name == "generator":
        graphs = choose_graph_sizes(sequences, samples=True, on_card=True)
    return replace(options, max_num_seqs=sequences, max_batched_tokens=tokens, graph_sizes=graphs)


class EngineProcess:
    """Keeps one vLLM process running: when it ends, another one is started.

    Run each request within `open_request`. The states of `Health` follow each other as starting ->
    ready -> dead -> ready …, or starting -> failed. `stop` leads to stopped.
    """

    def __init__(self, options: EngineOptions, on_restart: Callable[[], Awaitable[None]]) -> None:
        """on_restart: called to prepare a restarted process before its first request."""
        self.options = options
        """What the next process starts with. Its batch shrinks when memory is short."""
        self._configured = options
        self.block_bytes = 0
        """Bytes of one KV block, known once the engine is ready."""
        self.start_limit_bytes: int | None = None
        """KV memory that a restarted process may claim at its start. None sets no limit."""
        self._on_restart = on_restart
        self._live: LiveProcess | None = None
        self._accepts_calls = False
        kv_memory = "own" if options.owns_cards else None  # else the started process tells it
        self._health = Health(
            state="starting",
            cards=options.card_names,
            kv_memory=kv_memory,
            kv_fixed=options.kv_fixed,
        )
        """The fields that `health` does not compute."""
        self._attempt = 0
        """How many restarts in a row have begun or are planned. 0 once the engine is stable."""
        self._restart_at: float | None = None
        """When the next process starts, or None if no restart is planned or one is under way."""
        self._ready = asyncio.Event()
        """Set unless the engine is starting or dead, so that nobody waits for a failed one."""
        self._started_at = 0.0
        self._restarting: asyncio.Task[None] | None = None
        self._prompt_tokens = self._cached_tokens = 0

    def get_llm(self) -> AsyncLLM:
        """Return the live engine. Raises EngineDead when it is down."""
        if self._live is None or self._live.llm is None or self._health.state != "ready":
            raise self._make_error(f"is {self._health.state}")
        return self._live.llm

    @contextmanager
    def open_request(self, name: str) -> Iterator[AsyncLLM]:
        """Yield the live engine for the request of this name, and translate what vLLM raises.

        Raises EngineDead if the engine is down or goes down. The error's `is_suspect` says whether
        the request was in the step in which the process ended.
        """
        llm, live = self.get_llm(), self._live
        try:
            with translate_errors(self.options.name):
                yield llm
        except EngineDead as error:
            error.is_suspect = live is not None and live.record.holds(name)
            raise

    def health(self) -> Health:
        state, retry_in_s, notice = self._health.state, None, None
        if state == "dead" and self._restart_at is not None:
            retry_in_s = max(0.0, self._restart_at - asyncio.get_running_loop().time())
        before, now = self._configured, self.options
        if now != before:
            change = f"{now.max_num_seqs} sequences instead of {before.max_num_seqs}"
            if now.max_num_seqs == before.max_num_seqs:
                change = f"{now.max_batched_tokens} tokens instead of {before.max_batched_tokens}"
            notice = (
                f"it ran out of memory, so a step holds {change}, until the daemon is restarted"
            )
        attempt = 0 if state == "ready" else self._attempt
        return replace(
            self._health, pid=self.pid, attempt=attempt, retry_in_s=retry_in_s, notice=notice
        )

    def _note(self, **changes: Any) -> None:
        self._health = replace(self._health, **changes)

    @property
    def pid(self) -> int | None:
        return None if self._live is None else self._live.pid

    async def wait_ready(self, timeout_s: float) -> None:
        """Return once the engine serves. Raises EngineDead if it fails, stops or is too slow."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
                while self._health.state == "ready" and self.get_llm().errored:
                    self._handle_end()  # vLLM noticed it before our reader did
                    await self._ready.wait()
        except TimeoutError:
            what = f"did not restart within {timeout_s:g} s: {self._health.detail}"
            raise self._make_error(what) from None
        if self._health.state != "ready":
            raise self._make_error(f"is {self._health.state}: {self._health.detail or 'no error'}")

    def _make_error(self, what: str) -> EngineDead:
        """Make an error for which no request is to blame."""
        hints = {
            "failed": "see `flashedge logs`, then `flashedge down` and `flashedge up`",
            "dead": "it is being restarted; `flashedge ps` says why and when",
        }
        hint = hints.get(self._health.state)
        error = EngineDead(f"the {self.options.name} engine {what}", hint=hint)
        error.is_suspect = False
        return error

    async def start(self, *, shrinks: bool = True) -> None:
        """Start the first process and load the model. Raises EngineError if that fails.

        shrinks: whether to start again with a smaller batch if memory is short.
        """
        while True:
            options, is_forked = self.options, choose_start_method() == "forkserver"
            try:
                await self._start_process(options, shrinks=shrinks)
                return
            except EngineError as error:
                if self.options is not options:
                    continue  # its batch is smaller now
                if is_forked and give_up_forks(str(error)):
                    log.warning("CUDA does not work after a fork here: engines import vLLM again")
                    continue
                self._note(state="failed", detail=str(error))
                self._ready.set()
                raise

    async def _start_process(
        self,
        options: EngineOptions,
        prepare: Callable[[], Awaitable[None]] | None = None,
        *,
        shrinks: bool = True,
    ) -> None:
        """Start a process, and `prepare` it. On return it serves.

        Raises EngineError if that fails. If `shrinks` and memory was short, the next process starts
        with a smaller batch.
        """
        self._note_stage("starting its process")
        live = self._live = LiveProcess(options, self._handle_end)
        try:
            view = await live.start(self._note_stage)
            self.block_bytes, self._accepts_calls = view["block_bytes"], True
            if not options.owns_cards:
                self._note(kv_memory=view["mechanism"])
            if prepare is not None:
                await prepare()
        except Exception as error:
            self._accepts_calls = False
            self._note(stage=None)
            why = live.describe_end(error)
            if shrinks and (live.record.is_memory_short or is_memory_short(find_root(error))):
                self._shrink_batch()
            await live.shut_down()
            self._live = None
            raise EngineError(
                f"the {options.name} engine did not start: {why}",
                hint="see `flashedge logs`; `flashedge doctor` checks memory and checkpoints",
            ) from error
        log.info("%s ready: pid %s, %s", options.name, self.pid, view)
        self._started_at = asyncio.get_running_loop().time()
        self._note(state="ready", stage=None)
        self._ready.set()

    def _note_stage(self, stage: str) -> None:
        """Keep the stage of a starting process for `health`, and log each stage once."""
        if stage.partition(" (")[0] != (self._health.stage or "").partition(" (")[0]:
            log.info("%s: %s", self.options.name, stage)
        self._note(stage=stage)

    async def stop(self) -> None:
        self._note(state="stopped")
        self._accepts_calls = False
        self._ready.set()
        if self._restarting:
            self._restarting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._restarting
        if self._live is not None:
            await self._live.shut_down()
            self._live = None

    def _handle_end(self) -> None:
        """Fail the open requests at once and begin a restart."""
        live = self._live
        if live is None:
            return
        live.note_end()
        if self._health.state != "ready":
            return  # this is a start, which fails, or a stop
        self._note(state="dead", detail=live.describe_end())
        log.error("%s: %s", self.options.name, self._health.detail)
        self._accepts_calls = False
        self._ready.clear()
        self._live = None
        live.fail_requests()
        if live.record.is_memory_short:
            self._shrink_batch()
        if asyncio.get_running_loop().time() - self._started_at > STABLE_S:
            self._attempt = 0
        restart = self._restart(live, self._plan_restart())
        self._restarting = asyncio.create_task(restart, name="engine-restart")

    def _plan_restart(self) -> float:
        """Set the time of the next restart. Returns the seconds until then."""
        wait_s = BACKOFF_S[min(self._attempt, len(BACKOFF_S) - 1)]
        self._attempt += 1
        self._restart_at = asyncio.get_running_loop().time() + wait_s
        return wait_s

    async def _restart(self, dead: LiveProcess, wait_s: float) -> None:
        """Start processes until one serves, the first one after `wait_s` seconds."""
        await dead.shut_down()
        while True:
            await asyncio.sleep(wait_s)
            self._restart_at = None
            options, limit = self.options, self.start_limit_bytes
            if options.kv_start_bytes is not None and limit is not None:
                # Memory beyond `limit` may be the other engine's by now. 0 would stand for all.
                start_bytes = max(1, min(options.kv_start_bytes, limit))
                options = replace(options, kv_start_bytes=start_bytes)
            try:
                await self._start_process(options, self._on_restart)
            except EngineError as error:
                self._note(detail=str(error))
                wait_s = self._plan_restart()
                log.error("%s; again in %g s", error, wait_s)
            else:
                self._note(restarts=self._health.restarts + 1)
                return

    def _shrink_batch(self) -> None:
        """Let the next process start with half of the batch, if that is possible."""
        smaller = halve_batch(self.options)
        if smaller is not None:
            log.warning(
                "%s: memory is short, the next process starts with %d sequences and %d tokens a"
                " step",
                smaller.name,
                smaller.max_num_seqs,
                smaller.max_batched_tokens,
            )
            self.options = smaller

    async def call(self, method: str, *args: Any) -> Any:
        """Call a function of `inside.calls`. Raises EngineDead without a live engine, or
        GenerationFailed if the function fails."""
        live = self._live
        if live is None or not self._accepts_calls:
            raise self._make_error(f"is {self._health.state}")
        with translate_errors(self.options.name):
            try:
                return await live.call(method, *args)
            except ProcessEnded:
                raise self._make_error("ended during a call") from None

    async def view(self) -> EngineView:
        return EngineView(
            **await self.call("view"),
            block_bytes=self.block_bytes,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
        )

    def note_prompt(self, tokens: int, cached_tokens: int) -> None:
        """Count a prompt that was computed, and its tokens whose KV was in the cache."""
        self._prompt_tokens += tokens
        self._cached_tokens += min(tokens, cached_tokens)

    async def budget(self, kv_bytes: int) -> int:
        """See `engine.base.Engine`."""
        blocks = kv_bytes // self.block_bytes
        return int(await self.call("set_quota", blocks)) * self.block_bytes
