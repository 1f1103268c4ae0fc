"""The simulated generator."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from flashedge.engine.base import Chunk, ExtendRequest
from flashedge.errors import EngineError, RequestError
from flashedge.types import FinishReason
from scripts.lab.sim.codec import SimCodec
from scripts.lab.sim.config import Faults, SimConfig
from scripts.lab.sim.engine_loop import Gate, SimEngine
from scripts.lab.sim.jobs import GenerationJob
from scripts.lab.sim.model import SimModel
from scripts.lab.sim.sequence import SimSequence
from scripts.lab.sim.speculation import SimSpeculator


class SimulatedGenerator(SimEngine):
    """Implements engine.base.Generator: tokens of a SimModel at the cost of a real model."""

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
        self._speculator.schedule_drafts()

    def extend(self, request: ExtendRequest) -> AsyncGenerator[Chunk]:
        """Raises RequestError at once, EngineError from the stream."""
        if not request.token_ids:
            raise RequestError("token_ids is empty; give at least one token", param="token_ids")
        if request.max_tokens < 1:
            raise RequestError(
                f"max_tokens is {request.max_tokens}; it must be at least 1", param="max_tokens"
            )
        if request.guidance is not None:
            raise RequestError(
                "the simulated generator has no words, so it can't follow a grammar",
                hint="leave tools and response_format out, or choose a real pair",
                param="response_format",
            )
        if request.entropy_rule is not None:
            raise RequestError(
                "the simulated generator has no entropies, so it can't end steps by them",
                hint="choose another step rule, or a real pair",
                param="step_rule",
            )
        self._check_length(len(request.token_ids), "the path")
        return self._stream(request)

    async def _stream(self, request: ExtendRequest) -> AsyncGenerator[Chunk]:
        self._check_ready()
        speculator = self._speculator
        sequence = SimSequence(
            id=self._next_id(),
            tokens=list(request.token_ids),
            priority=request.priority,
            program=request.program,
        )
        drafted = speculator.adopt(request, sequence)
        beam = speculator.add_beam(request)

        def on_end(job: GenerationJob, reason: FinishReason) -> None:
            if job.path != tuple(sequence.tokens):
                self._scheduler.remove(sequence)  # the adopted draft is longer than the step
            if beam is not None:
                speculator.finish_beam(beam, job, reason)

        job = GenerationJob(
            sequence,
            request,
            self._model.reader(sequence.tokens),
            room=self.max_model_len - len(request.token_ids),
            interval=self.config.stream_interval,
            on_end=on_end,
        )
        try:
            if not job.replay(*drafted):
                self._begin(job)
            while True:
                chunk = await job.out.get()
                if isinstance(chunk, EngineError):
                    raise chunk
                yield chunk
                if chunk.finish:
                    return
        finally:
            self._end(job)
            if beam is not None:
                speculator.cancel_beam(beam)
