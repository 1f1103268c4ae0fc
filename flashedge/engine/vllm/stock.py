"""The naive twins: the same engines used the stock way, the A of every comparison.

Boundary by vLLM's stop string (found by its detokenizer in the front end, which then aborts the
request), whole-path scoring. The generator's prefix cache, batch limit and dtype stay as they
are: those are stock vLLM's own good sides.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace

from flashedge.engine.base import Chunk, EngineView, ExtendRequest, Health, ScoreRequest, StepScores
from flashedge.engine.vllm.codec import HFCodec
from flashedge.engine.vllm.generator import STEP_STOP, VllmGenerator, edge_params
from flashedge.engine.vllm.verifier import VllmVerifier


@dataclass(frozen=True, slots=True)
class StockGenerator:
    """`generator` with stop strings instead of boundaries found in its scheduler."""

    generator: VllmGenerator

    @property
    def codec(self) -> HFCodec:
        return self.generator.codec

    @property
    def max_model_len(self) -> int:
        return self.generator.max_model_len

    def extend(self, request: ExtendRequest) -> AsyncGenerator[Chunk]:
        stop = [STEP_STOP] if request.to_boundary else None
        params = edge_params(
            replace(request, to_boundary=False),
            self.codec,
            self.max_model_len,
            stop=stop,
            include_stop_str_in_output=True,
            detokenize=True,
        )
        return self.generator.stream(request, params)

    async def view(self) -> EngineView:
        return await self.generator.view()

    async def budget(self, kv_bytes: int) -> int:
        return await self.generator.budget(kv_bytes)

    def health(self) -> Health:
        return self.generator.health()

    async def wait_ready(self, timeout_s: float) -> None:
        await self.generator.wait_ready(timeout_s)


@dataclass(frozen=True, slots=True)
class StockVerifier:
    """`verifier` with a whole pass over the path for every score."""

    verifier: VllmVerifier

    @property
    def max_model_len(self) -> int:
        return self.verifier.max_model_len

    async def score(self, request: ScoreRequest) -> StepScores:
        return await self.verifier.score_whole(request)

    async def view(self) -> EngineView:
        return await self.verifier.view()

    async def budget(self, kv_bytes: int) -> int:
        return await self.verifier.budget(kv_bytes)

    def health(self) -> Health:
        return self.verifier.health()

    async def wait_ready(self, timeout_s: float) -> None:
        await self.verifier.wait_ready(timeout_s)
