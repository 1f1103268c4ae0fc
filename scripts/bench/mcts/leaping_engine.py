"""Simulated engines that decode many steps at once, for loads of thousands of searches.

They are the engines of `scripts.lab.sim`: the same scheduler, KV blocks, prefix cache and
costs. While a batch only decodes and nothing arrives, its steps differ in nothing but their
seconds. So they are computed in one leap that ends where the first request ends, or at the first
step after which something has arrived. Engines on one device take turns, step by step.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashedge.engine.base import Chunk, ExtendRequest, ScoreRequest, StepScores
from flashedge.errors import EngineError, PathOverflow
from flashedge.models.shape import ModelShape
from flashedge.scheduling.costs import Device
from flashedge.types import FinishReason
from scripts.bench.mcts.content import Content, Contents
from scripts.lab.sim.engine_loop import Job, SimConfig, SimEngine, estimate_step_s
from scripts.lab.sim.pair import ScoringJob
from scripts.lab.sim.scheduler import SequenceState, SimSequence, Slice

Seconds = NDArray[np.float64]
LONGEST_LEAP = 256
SEPARATOR = 2


class SharedDevice:
    """Lets one engine compute at a time, and ends its leap when something happens."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._poked = asyncio.Event()
        self._waiting = 0
        self.busy_s = 0.0

    def poke(self) -> None:
        """Something has changed: a leap ends with its present step."""
        self._poked.set()

    async def occupy(self, step_s: Seconds) -> int:
        """Compute these steps, or as many as are done when somebody else wants the device or
        something changes. At least one. Returns how many."""
        loop = asyncio.get_running_loop()
        self._waiting += 1
        self._poked.set()
        async with self._lock:
            self._waiting -= 1
            began_s, ends_s = loop.time(), np.cumsum(step_s)
            done = len(step_s) if not self._waiting else 1
            self._poked.clear()
            if done > 1:
                try:
                    async with asyncio.timeout_at(began_s + float(ends_s[-1])):
                        await self._poked.wait()
                    passed_s = loop.time() - began_s
                    done = min(len(step_s), int(np.searchsorted(ends_s, passed_s, "left")) + 1)
                except TimeoutError:
                    done = len(step_s)
            await asyncio.sleep(max(0.0, began_s + float(ends_s[done - 1]) - loop.time()))
            self.busy_s += float(ends_s[done - 1])
        return done


def estimate_decode_steps_s(
    device: Device, shape: ModelShape, computed: float, count: int, steps: int
) -> Seconds:
    """(steps,) seconds of consecutive steps that each add a token to the same `count` sequences.
    Equal to `estimate_step_s` of each step.

    computed: tokens of all sequences together whose KV is there before the first step.
    """
    added = count * np.arange(1, steps + 1)  # each token attends to itself as well
    tokens = np.asarray(computed + added, dtype=np.float64)
    attention = 4 * shape.layers * shape.heads * shape.head_dim * tokens
    flops = 2 * shape.params * float(count) + attention
    moved = shape.weights_bytes + shape.kv_bytes_per_token * tokens
    slower_s: Seconds = np.maximum(flops / device.flops, moved / device.bandwidth)
    return device.overhead_s + device.sequence_s * count + slower_s


class LeapingEngine(SimEngine):
    """The loop of both engines."""

    def __init__(self, config: SimConfig, device: SharedDevice) -> None:
        super().__init__(config)
        self._device = device

    def _begin(self, job: Job) -> None:
        super()._begin(job)
        self._device.poke()

    def _end(self, job: Job) -> None:
        is_running = job.sequence.state is SequenceState.RUNNING
        super()._end(job)
        if is_running:
            self._device.poke()

    async def _run(self) -> None:
        try:
            while batch := self._next_batch():
                before = self._scheduler.preemptions
                count = self._count_steps(batch) if before == self._scheduler.preemptions else 1
                done = await self._device.occupy(self._list_seconds(batch, count))
                self.steps += done
                self._deliver_steps(batch, done)
        except Exception as error:
            self.kill(f"{type(error).__name__} in the simulator: {error}")
            raise

    def _count_steps(self, batch: Sequence[Slice]) -> int:
        """Steps that may be computed in one leap, at least 1."""
        return 1

    def _list_seconds(self, batch: Sequence[Slice], count: int) -> Seconds:
        device, shape = self.config.device, self.config.shape
        if count == 1:
            shares = ((work.context, work.new) for work in batch)
            return np.array([estimate_step_s(device, shape, shares)])
        computed = sum(work.context for work in batch)
        return estimate_decode_steps_s(device, shape, computed, len(batch), count)

    def _deliver_steps(self, batch: Sequence[Slice], done: int) -> None:
        self._deliver(batch)


class RecordedJob(Job):
    """Writes the tokens of a recorded step."""

    def __init__(self, sequence: SimSequence, content: Content, room: int) -> None:
        self.sequence = sequence
        self.content = content
        self.left = min(content.tokens, room)
        self.is_cut = room < content.tokens
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def advance(self) -> bool:
        self.leap(1)
        if self.left == 0 and not self.done.done():
            self.done.set_result(None)
        return self.left == 0

    def leap(self, steps: int) -> None:
        self.sequence.tokens += [self.content.id] * steps
        self.left -= steps

    def fail(self, error: EngineError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class LeapingGenerator(LeapingEngine):
    """Implements engine.base.Generator."""

    speculator = None
    most_drafted = 0

    def __init__(self, config: SimConfig, contents: Contents, device: SharedDevice) -> None:
        super().__init__(config, device)
        self._contents = contents

    @property
    def codec(self) -> Contents:
        return self._contents

    def extend(self, request: ExtendRequest) -> AsyncGenerator[Chunk]:
        self._check_length(len(request.token_ids), "the path")
        return self._stream(request)

    async def _stream(self, request: ExtendRequest) -> AsyncGenerator[Chunk]:
        parent = self._contents.find(request.token_ids[-1])
        content = self._contents.extend(parent, request.seed)
        sequence = SimSequence(
            id=next(self._ids), tokens=list(request.token_ids), program=request.program
        )
        room = min(request.max_tokens, self.max_model_len - len(request.token_ids))
        job = RecordedJob(sequence, content, room)
        size = job.left
        self._begin(job)
        try:
            await job.done
        finally:
            self._end(job)
        finish = FinishReason.STOP if content.node.ends else FinishReason.BOUNDARY
        yield Chunk(
            token_ids=(content.id,) * size,
            logprobs=(content.node.logprob,) * size,
            finish=FinishReason.LENGTH if job.is_cut else finish,
            cached_tokens=sequence.cached or 0,
        )

    def _count_steps(self, batch: Sequence[Slice]) -> int:
        jobs = [self._jobs[work.sequence.id] for work in batch]
        if any(work.new != 1 for work in batch):
            return 1
        lefts = [job.left for job in jobs if isinstance(job, RecordedJob)]
        count = min(LONGEST_LEAP, *lefts)
        cache = self._scheduler.cache
        free = cache.quota - cache.used
        while count > 1:
            needed = sum(
                cache.blocks_for(work.context + count) - len(work.sequence.blocks) for work in batch
            )
            if needed <= free:
                break
            count //= 2
        return max(1, count)

    def _deliver_steps(self, batch: Sequence[Slice], done: int) -> None:
        """The first of the steps is delivered by all rules, those behind it in one piece. Only the
        last step can end a request, and it is delivered last."""
        if done > 1:
            for work in batch:
                if work.sequence.state is SequenceState.RUNNING:
                    self._advance(work, done - 1)
        self._deliver(batch)

    def _advance(self, work: Slice, steps: int) -> None:
        sequence, cache = work.sequence, self._scheduler.cache
        job = self._jobs[sequence.id]
        assert isinstance(job, RecordedJob)
        job.leap(steps)
        size, before = cache.block_tokens, sequence.computed
        sequence.computed += steps
        missing = cache.blocks_for(sequence.computed + 1) - len(sequence.blocks)
        if missing > 0:
            sequence.blocks += cache.take(missing)
        for i in range(before // size, (sequence.computed + 1) // size):
            cache.seal(sequence.blocks[i], sequence.key(i, size))


class LeapingVerifier(LeapingEngine):
    """Implements engine.base.Verifier: the scores that were recorded."""

    def __init__(self, config: SimConfig, contents: Contents, device: SharedDevice) -> None:
        super().__init__(config, device)
        self._contents = contents

    async def score(self, request: ScoreRequest) -> StepScores:
        contents = self._contents
        prompt = contents.find_prompt(request.problem)
        tokens = [prompt.id] * prompt.tokens
        separators = []
        found = [contents.find_by_text(step) for step in request.steps]
        for content in found:
            tokens += [content.id] * content.tokens
            separators.append(len(tokens))
            tokens.append(SEPARATOR)
        if len(tokens) > self.max_model_len:
            raise PathOverflow(f"the path has {len(tokens)} tokens")
        sequence = SimSequence(
            id=next(self._ids),
            tokens=tokens,
            program=request.program,
            reuse_tokens=separators[request.num_scored],
        )
        job = ScoringJob(sequence)
        self._begin(job)
        try:
            await job.done
        finally:
            self._end(job)
        scores = [score for content in found[request.num_scored :] for score in content.node.scores]
        return StepScores(
            scores=tuple(scores), tokens=len(tokens), cached_tokens=sequence.cached or 0
        )


@dataclass(frozen=True)
class LeapingTwins:
    """Implements `TwinEngines`."""

    generator: LeapingGenerator
    verifier: LeapingVerifier

    @property
    def stock_generator(self) -> LeapingGenerator:
        return self.generator

    @property
    def stock_verifier(self) -> LeapingVerifier:
        return self.verifier
