"""The naive twins: the same engines used the stock way, the A of every comparison.

Boundary by vLLM's stop string (found by its detokenizer in the front end, which then aborts the
request), whole-path scoring. The generator's prefix cache, batch limit and dtype stay as they
are: those are stock vLLM's own good sides.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import TYPE_CHECKING

from flashedge.engine.base import Chunk, ExtendRequest, ScoreRequest, StepScores
from flashedge.engine.proxy import EngineProxy
from flashedge.engine.vllm.codec import HFCodec
from flashedge.engine.vllm.generator import STEP_STOP, VllmGenerator, edge_params
from flashedge.engine.vllm.verifier import VllmVerifier

if TYPE_CHECKING:
    from vllm import SamplingParams


class StockGenerator(EngineProxy[VllmGenerator]):
    """The generator with stop strings instead of boundaries found in its scheduler."""

    @property
    def speculator(self) -> None:
        """Stock vLLM ends where a step ends."""

    @property
    def codec(self) -> HFCodec:
        return self._engine.codec

    def extend(self, request: ExtendRequest) -> AsyncGenerator[Chunk]:
        params = stock_params(request, self.codec, self.max_model_len)
        return self._engine.stream(request, params)


class StockVerifier(EngineProxy[VllmVerifier]):
    """The verifier with a whole pass over the path for every score."""

    async def score(self, request: ScoreRequest) -> StepScores:
        return await self._engine.score_whole(request)


def stock_params(request: ExtendRequest, codec: HFCodec, max_model_len: int) -> SamplingParams:
    """vLLM's parameters for `request`, with a stop string."""
    return edge_params(
        replace(request, to_boundary=False),
        codec,
        max_model_len,
        stop=[STEP_STOP] if request.to_boundary else None,
        include_stop_str_in_output=True,
        detokenize=True,
    )
