"""The naive twins: the same engines used the stock way, the A of every comparison.

Boundary by vLLM's stop string (found by its detokenizer in the front end, which then aborts the
request), whole-path scoring. The generator's prefix cache, batch limit and dtype stay as they
are: those are stock vLLM's own good sides.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Generic, TypeVar

from flashedge.engine.base import Chunk, EngineView, ExtendRequest, Health, ScoreRequest, StepScores
from flashedge.engine.vllm.codec import HFCodec
from flashedge.engine.vllm.front import EngineFront
from flashedge.engine.vllm.generator import STEP_STOP, VllmGenerator, edge_params
from flashedge.engine.vllm.verifier import VllmVerifier

E = TypeVar("E", bound=EngineFront)


class _Stock(Generic[E]):
    """An engine of ours used the stock way: one process, one budget, one health for both."""

    def __init__(self, engine: E) -> None:
        self._engine = engine

    @property
    def max_model_len(self) -> int:
        return self._engine.max_model_len

    async def view(self) -> EngineView:
        return await self._engine.view()

    async def budget(self, kv_bytes: int, max_sequences: int | None = None) -> int:
        return await self._engine.budget(kv_bytes, max_sequences)

    async def offload(self, *, keep: bool = True) -> int:
        return await self._engine.offload(keep=keep)

    async def restore(self) -> int:
        return await self._engine.restore()

    def health(self) -> Health:
        return self._engine.health()

    async def wait_ready(self, timeout_s: float) -> None:
        await self._engine.wait_ready(timeout_s)


class StockGenerator(_Stock[VllmGenerator]):
    """The generator with stop strings instead of boundaries found in its scheduler."""

    @property
    def speculator(self) -> None:
        """Stock vLLM ends where a step ends."""

    @property
    def codec(self) -> HFCodec:
        return self._engine.codec

    def extend(self, request: ExtendRequest) -> AsyncGenerator[Chunk]:
        params = edge_params(
            replace(request, to_boundary=False),
            self.codec,
            self.max_model_len,
            stop=[STEP_STOP] if request.to_boundary else None,
            include_stop_str_in_output=True,
            detokenize=True,
        )
        return self._engine.stream(request, params)


class StockVerifier(_Stock[VllmVerifier]):
    """The verifier with a whole pass over the path for every score."""

    async def score(self, request: ScoreRequest) -> StepScores:
        return await self._engine.score_whole(request)
