"""The naive twins: the same engines used in the stock way, as the baseline of every comparison.

A step ends at vLLM's stop string, which the detokenizer in the front end finds and then aborts the
request. Every score is a pass over the whole path. The generator's prefix cache, batch limit and
dtype stay as they are, because stock vLLM has these advantages too.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import TYPE_CHECKING

from flashedge.engine.base import Chunk, ExtendRequest, ScoreRequest, StepScores
from flashedge.engine.proxy import EngineProxy
from flashedge.engine.vllm.codec import HFCodec
from flashedge.engine.vllm.generator import STEP_STOP, VllmGenerator, build_params
from flashedge.engine.vllm.verifier import VllmVerifier
from flashedge.types import BLANK_LINE, MARKERS

if TYPE_CHECKING:
    from vllm import SamplingParams


class StockGenerator(EngineProxy[VllmGenerator]):
    """The generator with stop strings instead of boundaries that its scheduler finds."""

    @property
    def speculator(self) -> None:
        """Stock vLLM drafts nothing."""

    @property
    def codec(self) -> HFCodec:
        return self._engine.codec

    def extend(self, request: ExtendRequest) -> AsyncGenerator[Chunk]:
        params = build_stock_params(request, self.codec, self.max_model_len)
        return self._engine.stream(request, params)


class StockVerifier(EngineProxy[VllmVerifier]):
    """The verifier with a pass over the whole path for every score."""

    async def score(self, request: ScoreRequest) -> StepScores:
        return await self._engine.score_whole(request)


def build_stock_params(
    request: ExtendRequest, codec: HFCodec, max_model_len: int
) -> SamplingParams:
    """Build vLLM's parameters for `request`, with a stop string, or with the marker words as stop
    tokens."""
    rule = request.step_rule if request.to_boundary else None
    markers = codec.rules[MARKERS].holds if rule == MARKERS else frozenset()
    return build_params(
        replace(request, to_boundary=False),
        codec,
        max_model_len,
        stop=[STEP_STOP] if rule == BLANK_LINE else None,
        stop_token_ids=sorted(codec.eos_ids | markers),
        include_stop_str_in_output=True,
        detokenize=True,
    )
