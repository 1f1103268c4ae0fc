"""A simulated Generator and Verifier on virtual time (see `clock.run_virtual`).

    model.py        what the simulated model writes: its vocabulary, lengths and tokens
    blocks.py       KV blocks: reuse by prefix, LRU eviction, quota
    scheduler.py    the state of a request, and which requests run in a step; preemption
    engine_loop.py  configuration, loop, what a step costs, budget, health, faults
    generator.py    the generator, and its drafts of a level's next steps

This file has the verifier and builds pairs. Tokens and scores are made up, but they are pure
functions of the same inputs as a real model's, so exactness can be tested here.
"""

import asyncio
from math import sqrt
from statistics import NormalDist

from flashedge.engine.base import ScoreRequest, StepScores
from flashedge.errors import ContextOverflow, EngineError, PathOverflow, RequestError
from flashedge.models.shape import ModelShape
from flashedge.scheduling.costs import RTX_4090, Device
from scripts.lab.sim.engine_loop import Faults, Job, SimConfig, SimEngine
from scripts.lab.sim.generator import SimulatedGenerator
from scripts.lab.sim.model import SEPARATOR, SimCodec, SimModel, digest
from scripts.lab.sim.scheduler import SimSequence

__all__ = [
    "Faults",
    "SimConfig",
    "SimulatedGenerator",
    "SimulatedStockVerifier",
    "SimulatedVerifier",
    "simulated_pair",
]


RHO = 0.7
"""Correlation of a step's latent with the latent before, so that good parents tend to have good
children. Assumed, not measured."""


class ScoringJob(Job):
    """One ScoreRequest under way. `done` is set once all of its prompt is computed."""

    def __init__(self, sequence: SimSequence) -> None:
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
    """Implements engine.base.Verifier: scores that are a pure function of the path's text.

    A path's latent quality is a Gaussian walk over its steps. Scores are the latents' normal
    quantiles, so they are uniform in [0, 1] over paths.
    """

    _codec = SimCodec()

    async def score(self, request: ScoreRequest, *, reuse: bool = True) -> StepScores:
        """reuse: take KV from the cache, up to the first separator whose score is requested.

        Raises RequestError, EngineError.
        """
        if not 0 <= request.num_scored <= len(request.steps):
            raise RequestError(
                f"num_scored is {request.num_scored}; there are {len(request.steps)} steps",
                param="num_scored",
            )
        tokens, separators = self._build_prompt(request)
        try:
            self._check_length(len(tokens) - 1, "the path to score")
        except ContextOverflow as error:
            problem = len(self._codec.encode_chat(request.problem.messages))
            if problem < self.max_model_len:
                raise PathOverflow(str(error), hint=error.hint) from None
            raise
        if request.num_scored == len(request.steps):
            return StepScores(scores=(), tokens=len(tokens), cached_tokens=len(tokens))
        sequence = SimSequence(
            id=next(self._ids),
            tokens=tokens,
            program=request.program,
            reuse_tokens=separators[request.num_scored] if reuse else 0,
        )
        job = ScoringJob(sequence)
        self._begin(job)
        try:
            await job.done
        finally:
            self._end(job)
        return StepScores(
            scores=self._compute_scores(tokens, separators)[request.num_scored :],
            tokens=len(tokens),
            cached_tokens=sequence.cached or 0,
        )

    async def score_whole(self, request: ScoreRequest) -> StepScores:
        """The same scores by one pass over the whole path."""
        return await self.score(request, reuse=False)

    def _build_prompt(self, request: ScoreRequest) -> tuple[list[int], list[int]]:
        """Token ids, and the position of each step's separator."""
        tokens = list(self._codec.encode_chat(request.problem.messages))
        separators = []
        for step in request.steps:
            separators.append(len(tokens) + len(ids := self._codec.encode(step.strip())))
            tokens += [*ids, SEPARATOR]
        return tokens, separators

    def _compute_scores(self, tokens: list[int], separators: list[int]) -> tuple[float, ...]:
        normal, latent, scores = NormalDist(), 0.0, []
        for i, at in enumerate(separators):
            fresh = normal.inv_cdf(((digest(tokens[: at + 1]) >> 11) + 0.5) / 2**53)
            latent = RHO * latent + sqrt(1 - RHO**2) * fresh if i else fresh
            scores.append(normal.cdf(latent))
        return tuple(scores)


class SimulatedStockVerifier(SimulatedVerifier):
    """The naive twin: every score takes a pass over the whole path."""

    async def score(self, request: ScoreRequest, *, reuse: bool = False) -> StepScores:
        return await super().score(request, reuse=reuse)


def simulated_pair(
    model: SimModel,
    generator: ModelShape,
    verifier: ModelShape,
    *,
    kv_bytes: int,
    max_model_len: int = 4096,
    device: Device = RTX_4090,
) -> tuple[SimulatedGenerator, SimulatedVerifier]:
    """A generator and a verifier whose steps take turns on one device. kv_bytes: of each."""
    gate = asyncio.Lock()
    first, second = (
        SimConfig(shape=shape, kv_bytes=kv_bytes, max_model_len=max_model_len, device=device)
        for shape in (generator, verifier)
    )
    return SimulatedGenerator(first, model, gate=gate), SimulatedVerifier(second, gate=gate)
