"""The loop that a simulated Generator and Verifier share: plan a step, wait for the time that the
roofline says, deliver.

The engine's task starts with the first request and ends when none is left.

Ref: arXiv 2509.00195 §4.3 for the cost of a step.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal

from flashedge.engine.base import EngineView, Health
from flashedge.errors import ConfigError, ContextOverflow, EngineDead, EngineError, GenerationFailed
from flashedge.models.shape import ModelShape
from flashedge.scheduling.costs import RTX_4090, Device, count_flops
from scripts.lab.sim.blocks import BlockCache
from scripts.lab.sim.scheduler import SimScheduler, SimSequence, Slice


def estimate_step_s(
    device: Device, shape: ModelShape, shares: Iterable[tuple[int, int]], padding: int = 0
) -> float:
    """Seconds of one engine step.

    shares: (context, new) of each sequence: `new` tokens, computed behind `context` tokens of KV.
    padding: further tokens, which are computed and attend to nothing.
    """
    flops, tokens, sequences = 2.0 * shape.params * padding, 0, 0
    for context, new in shares:
        flops += count_flops(shape, context, new)
        tokens += context + new
        sequences += 1
    moved = shape.weights_bytes + shape.kv_bytes_per_token * tokens
    roofline_s = max(flops / device.flops, moved / device.bandwidth)
    return device.overhead_s + device.sequence_s * sequences + roofline_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SimConfig:
    """One simulated engine."""

    shape: ModelShape
    kv_bytes: int
    """Its whole KV memory, the upper limit of `budget`."""
    device: Device = RTX_4090
    block_tokens: int = 16
    max_model_len: int = 4096
    max_num_seqs: int = 256
    max_batched_tokens: int = 2048
    stream_interval: int = 1
    """Tokens of a chunk. A request's last chunk may hold fewer."""
    host_bytes_per_s: float = 25e9
    """Bandwidth between the device and the memory that offloaded KV goes to (PCIe 4 x16)."""

    @property
    def block_bytes(self) -> int:
        return self.block_tokens * self.shape.kv_bytes_per_token


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What goes wrong, for tests."""

    die_after_steps: frozenset[int] = frozenset()
    """The engine dies at the end of these steps, counted from 1 over its whole life."""
    restart_s: float | None = 2.0
    """Virtual seconds until a dead engine is back. None: it is given up."""
    fail_requests: frozenset[int] = frozenset()
    """These requests fail at their first step, counted from 0 in order of arrival."""


class Job(ABC):
    """Decides what happens each time all KV of its sequence is computed."""

    sequence: SimSequence

    @abstractmethod
    def advance(self) -> bool:
        """Use the result of an engine step. True when the job is done."""

    @abstractmethod
    def fail(self, error: EngineError) -> None: ...


class SimEngine:
    """Base of the simulated engines: KV blocks, batching, cost, budget, health, faults."""

    def __init__(
        self, config: SimConfig, *, faults: Faults | None = None, gate: asyncio.Lock | None = None
    ) -> None:
        """gate: shared by the engines of one device, so that one of them computes at a time.

        Raises ConfigError when the KV can't hold one request of full length.
        """
        self.config = config
        self.max_model_len = config.max_model_len
        self.steps = 0
        self.busy_s = 0.0
        self.counters: Mapping[str, int] = {}
        """See `EngineView.token_drafts`."""
        self.peak_bytes = 0
        """Most KV that requests held at the end of a step."""
        self.on_step: Callable[[tuple[Slice, ...], float], None] = lambda batch, took_s: None
        """Called after each step with its batch and its seconds."""
        self._faults = faults or Faults()
        self._gate = gate or asyncio.Lock()
        blocks = config.kv_bytes // config.block_bytes
        if blocks * config.block_tokens < config.max_model_len:
            raise ConfigError(
                f"kv_bytes={config.kv_bytes} holds {blocks * config.block_tokens} tokens of "
                f"{config.shape.name}, max_model_len is {config.max_model_len}",
                hint="raise kv_bytes or lower max_model_len",
                param="kv_bytes",
            )
        self._scheduler = SimScheduler(
            BlockCache(blocks, config.block_tokens),
            longest_tokens=config.max_model_len,
            max_num_seqs=config.max_num_seqs,
            max_batched_tokens=config.max_batched_tokens,
        )
        self.suspect_lock = asyncio.Lock()
        """See `engine.base`."""
        self._jobs: dict[int, Job] = {}
        self._ids = count()
        self._is_offloaded = False
        self._task: asyncio.Task[None] | None = None
        self._health = Health(state="ready", kv_memory="os")
        self._settled = asyncio.Event()  # ready or failed, not dead
        self._settled.set()

    def __repr__(self) -> str:
        c = self.config
        return f"<{type(self).__name__} (simulated): {c.shape.name} on {c.device.name}>"

    async def view(self) -> EngineView:
        cache = self._scheduler.cache
        return EngineView(
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            blocks_used=cache.used,
            blocks_total=cache.total,
            quota_blocks=cache.quota,
            block_tokens=cache.block_tokens,
            block_bytes=self.config.block_bytes,
            preemptions=self._scheduler.preemptions,
            token_drafts=self.counters,
        )

    async def budget(self, kv_bytes: int) -> int:
        """Grants whole blocks, at most the engine's KV, at least one request of full length.
        Requests beyond the quota are preempted now and go on when there is room."""
        blocks = self._scheduler.set_quota(max(kv_bytes, 0) // self.config.block_bytes)
        return blocks * self.config.block_bytes

    async def offload(self, *, keep: bool = True, share: float = 1.0) -> int:
        """Starts when the current step ends, and takes the bytes' time on the host link. All of it
        moves with the last share, as `restore` does."""
        if share < 1:
            return 0
        self._is_offloaded = True
        async with self._gate:
            if not keep:
                self._scheduler.drop_kv()
            return await self._move_kv()

    async def restore(self, *, share: float = 1.0) -> int:
        if share < 1 or not self._is_offloaded:
            return 0
        async with self._gate:
            moved = await self._move_kv()
        self._is_offloaded = False
        self._wake()
        return moved

    async def rank_programs(self, keys: Sequence[str]) -> None:
        self._scheduler.rank_programs(keys)

    async def _move_kv(self) -> int:
        cache = self._scheduler.cache
        moved = (cache.used + cache.cached) * self.config.block_bytes
        await asyncio.sleep(moved / self.config.host_bytes_per_s)
        return moved

    def health(self) -> Health:
        return self._health

    async def wait_ready(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._settled.wait()
        except TimeoutError:
            raise EngineDead(f"{self!r} was not ready within {timeout_s:g} s") from None
        if self._health.state == "failed":
            raise EngineDead(f"{self!r} was given up: {self._health.detail}")

    def kill(self, detail: str = "killed") -> None:
        """Die now. Open requests end in EngineDead, all KV is lost; the engine restarts as
        `Faults` says."""
        if self._health.state != "ready":
            return
        for job in tuple(self._jobs.values()):
            self._end(job)
            job.fail(EngineDead(f"{self!r} died: {detail}", hint="retry once it has restarted"))
        self._scheduler.cache.clear()
        restart_s = self._faults.restart_s
        state: Literal["failed", "dead"] = "failed" if restart_s is None else "dead"
        self._health = replace(self._health, state=state, detail=detail)
        if restart_s is not None:
            self._settled.clear()
            asyncio.get_running_loop().call_later(restart_s, self._restart)

    def _restart(self) -> None:
        self._health = replace(self._health, state="ready", restarts=self._health.restarts + 1)
        self._settled.set()

    def _check_length(self, tokens: int, what: str) -> None:
        """Raises ContextOverflow unless one more token fits behind `tokens`."""
        if tokens >= self.max_model_len:
            raise ContextOverflow(
                f"{what} has {tokens} tokens, the model's limit is {self.max_model_len} "
                "(max_model_len)",
                hint="shorten the problem or take a model with a longer context",
            )

    def _check_ready(self) -> None:
        if self._health.state != "ready":
            raise EngineDead(f"{self!r} is {self._health.state}: {self._health.detail}")

    def _begin(self, job: Job) -> None:
        """Raises EngineDead when the engine is not ready."""
        self._check_ready()
        self._jobs[job.sequence.id] = job
        self._scheduler.add(job.sequence)
        self._wake()

    def _end(self, job: Job) -> None:
        """Drop a job that is done or cancelled, and free its blocks."""
        self._jobs.pop(job.sequence.id, None)
        self._scheduler.remove(job.sequence)

    def _wake(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name=repr(self))

    async def _run(self) -> None:
        """Step until no request is left; `_wake` starts it again."""
        try:
            while batch := self._next_batch():
                await self._compute(batch)
                self.steps += 1
                if self.steps in self._faults.die_after_steps:
                    self.kill(f"fault injected after step {self.steps}")
                self._deliver(batch)
        except Exception as error:
            self.kill(f"{type(error).__name__} in the simulator: {error}")
            raise

    def _next_batch(self) -> tuple[Slice, ...]:
        return () if self._is_offloaded else self._scheduler.plan()

    async def _compute(self, batch: tuple[Slice, ...]) -> None:
        config = self.config
        shares = ((work.context, work.new) for work in batch)
        took_s = estimate_step_s(config.device, config.shape, shares)
        took_s += config.device.draft_s * sum(len(work.sequence.draft) for work in batch)
        host_s = config.device.overhead_s + config.device.sequence_s * len(batch)
        await asyncio.sleep(host_s)  # meanwhile the device is free for the other engine
        async with self._gate:
            await asyncio.sleep(took_s - host_s)
        self.busy_s += took_s
        held_bytes = self._scheduler.cache.used * config.block_bytes
        self.peak_bytes = max(self.peak_bytes, held_bytes)
        self.on_step(batch, took_s)

    def _deliver(self, batch: Sequence[Slice]) -> None:
        for work in batch:
            if not self._scheduler.complete(work):
                continue
            job = self._jobs[work.sequence.id]
            if work.sequence.id in self._faults.fail_requests:
                self._end(job)
                job.fail(GenerationFailed(f"request {work.sequence.id} failed: fault injected"))
            elif self._advance_job(job):
                self._end(job)

    def _advance_job(self, job: Job) -> bool:
        """Let a job use the result of a step. True when it is done."""
        return job.advance()
