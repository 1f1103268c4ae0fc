"""A simulated Generator and Verifier on virtual time (see `sim_clock.run_virtual`).

    sim_text.py       codec, trace, what the model says
    sim_blocks.py     KV blocks: re-use by prefix, LRU eviction, quota
    sim_scheduler.py  which requests run in a step; preemption
    sim_engine.py     the loop, budget, health, faults
    sim_generation.py tokens of a request, and tokens drawn ahead of one
    sim_speculation.py what goes on past its step while others still generate
    simulated.py      the two protocols of engine.base over it

What a step costs is `scheduling/costs/roofline.py`'s to say.

Ref: arXiv 2509.00195 §4.3 for the cost model. Tokens and scores are made up, but are pure
functions of what a real model's would be functions of, so exactness can be tested here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from math import sqrt
from statistics import NormalDist

from flashedge.engine.base import Chunk, ExtendRequest, ScoreRequest, StepScores
from flashedge.engine.sim import scheduler as sim_scheduler
from flashedge.engine.sim.engine_loop import Faults, Gate, Job, SimConfig, SimEngine
from flashedge.engine.sim.generation import Generation
from flashedge.engine.sim.speculation import SimSpeculator
from flashedge.engine.sim.text import SEPARATOR, SimCodec, SimModel, digest
from flashedge.errors import EngineError, RequestError
from flashedge.models.shape import ModelShape
from flashedge.scheduling.costs.roofline import RTX_4090, Device
from flashedge.types import FinishReason

__all__ = ["Faults", "SimConfig", "SimulatedGenerator", "SimulatedVerifier", "simulated_pair"]


class SimulatedGenerator(SimEngine):
    """engine.base.Generator: tokens of a SimModel at the cost of the configured model."""

    def __init__(
        self,
        config: SimConfig,
        model: SimModel,
        *,
        faults: Faults | None = None,
        gate: Gate | None = None,
        truncation: float | None = None,
    ) -> None:
        """truncation: see `SimSpeculator`."""
        super().__init__(config, faults=faults, gate=gate)
        self._model = model
        self._codec = SimCodec()
        self._speculator = SimSpeculator(self._scheduler, model, config, self._jobs, truncation)

    @property
    def codec(self) -> SimCodec:
        return self._codec

    @property
    def speculator(self) -> SimSpeculator:
        return self._speculator

    def kill(self, detail: str = "killed") -> None:
        super().kill(detail)
        self._speculator.clear()

    def _before_step(self) -> None:
        self._speculator.before_step()

    def extend(self, request: ExtendRequest) -> AsyncGenerator[Chunk]:
        """Raises RequestError at once, EngineError from the stream."""
        if not request.token_ids:
            raise RequestError("token_ids is empty; give at least one token", param="token_ids")
        if request.max_tokens < 1:
            raise RequestError(
                f"max_tokens is {request.max_tokens}; it must be at least 1", param="max_tokens"
            )
        self._check_length(len(request.token_ids), "the path")
        return self._stream(request)

    async def _stream(self, request: ExtendRequest) -> AsyncGenerator[Chunk]:
        self._check_ready()
        speculator = self._speculator
        sequence = sim_scheduler.Sequence(
            id=self._next_id(), tokens=list(request.token_ids), priority=request.priority
        )
        drawn = speculator.adopt(request, sequence)
        beam = speculator.begin(request)

        def ended(job: Generation, reason: FinishReason) -> None:
            if job.path != tuple(sequence.tokens):
                self._scheduler.remove(sequence)  # more was drawn ahead than it may have
            if beam is not None:
                speculator.finished(beam, job, reason)

        job = Generation(
            sequence,
            request,
            self._model.reader(sequence.tokens),
            room=self.max_model_len - len(request.token_ids),
            interval=self.config.stream_interval,
            on_end=ended,
        )
        try:
            if not job.replay(*drawn):
                self._begin(job)
            while True:
                told = await job.out.get()
                if isinstance(told, EngineError):
                    raise told
                yield told
                if told.finish:
                    return
        finally:
            self._end(job)
            if beam is not None:
                speculator.withdraw(beam)


class _Scoring(Job):
    """One ScoreRequest under way; `done` is set once all of its prompt is computed."""

    def __init__(self, sequence: sim_scheduler.Sequence) -> None:
        self.sequence = sequence
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def advance(self) -> bool:
        if not self.done.done():
            self.done.set_result(None)
        return True

    def fail(self, error: EngineError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class SimulatedVerifier(SimEngine):
    """engine.base.Verifier: scores that are a pure function of the path's text.

    A path's latent quality is a Gaussian walk over its steps: rho is the correlation of a step's
    latent with the one before, so a good parent tends to have good children (assumed, not
    measured). Scores are the latents' normal quantiles: uniform in [0, 1] over paths.
    """

    def __init__(
        self,
        config: SimConfig,
        *,
        rho: float = 0.7,
        faults: Faults | None = None,
        gate: Gate | None = None,
    ) -> None:
        super().__init__(config, faults=faults, gate=gate)
        self._rho = rho
        self._codec = SimCodec()

    async def score(self, request: ScoreRequest) -> StepScores:
        """KV is re-used up to the first separator whose score is wanted.

        Raises RequestError, EngineError.
        """
        return await self._score(request, reuse=True)

    async def score_whole(self, request: ScoreRequest) -> StepScores:
        """The same scores by one pass over the whole path, nothing re-used: the naive twin."""
        return await self._score(request, reuse=False)

    async def _score(self, request: ScoreRequest, *, reuse: bool) -> StepScores:
        if not 0 <= request.num_scored <= len(request.steps):
            raise RequestError(
                f"num_scored is {request.num_scored}; there are {len(request.steps)} steps",
                param="num_scored",
            )
        tokens, separators = self._prompt(request)
        self._check_length(len(tokens) - 1, "the path to score")
        if request.num_scored == len(request.steps):
            return StepScores(scores=(), tokens=len(tokens), cached_tokens=len(tokens))
        sequence = sim_scheduler.Sequence(
            id=self._next_id(),
            tokens=tokens,
            reuse_tokens=separators[request.num_scored] if reuse else 0,
        )
        job = _Scoring(sequence)
        self._begin(job)
        try:
            await job.done
        finally:
            self._end(job)
        return StepScores(
            scores=self._scores(tokens, separators)[request.num_scored :],
            tokens=len(tokens),
            cached_tokens=sequence.cached or 0,
        )

    def _prompt(self, request: ScoreRequest) -> tuple[list[int], list[int]]:
        """Token ids, and the position of each step's separator."""
        tokens = list(self._codec.encode_chat(request.problem.messages))
        separators = []
        for step in request.steps:
            separators.append(len(tokens) + len(ids := self._codec.encode(step.strip())))
            tokens += [*ids, SEPARATOR]
        return tokens, separators

    def _scores(self, tokens: list[int], separators: list[int]) -> tuple[float, ...]:
        normal, latent, scores = NormalDist(), 0.0, []
        for i, at in enumerate(separators):
            fresh = normal.inv_cdf(((digest(tokens[: at + 1]) >> 11) + 0.5) / 2**53)
            latent = self._rho * latent + sqrt(1 - self._rho**2) * fresh if i else fresh
            scores.append(normal.cdf(latent))
        return tuple(scores)


class StockVerifier(SimulatedVerifier):
    """The naive twin: a whole pass over the path for every score."""

    async def score(self, request: ScoreRequest) -> StepScores:
        return await self.score_whole(request)


def simulated_pair(
    model: SimModel,
    *,
    generator: ModelShape,
    verifier: ModelShape,
    generator_kv_bytes: int,
    verifier_kv_bytes: int,
    device: Device = RTX_4090,
    max_model_len: int = 4096,
) -> tuple[SimulatedGenerator, SimulatedVerifier]:
    """A generator and a verifier on one device: their steps take turns."""
    gate = asyncio.Lock()

    def config(shape: ModelShape, kv_bytes: int) -> SimConfig:
        return SimConfig(shape=shape, kv_bytes=kv_bytes, device=device, max_model_len=max_model_len)

    return (
        SimulatedGenerator(config(generator, generator_kv_bytes), model, gate=gate),
        SimulatedVerifier(config(verifier, verifier_kv_bytes), gate=gate),
    )
