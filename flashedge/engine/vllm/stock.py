"""The naive twins: the same engines used in the stock way, as the baseline of every comparison.

A step ends at a stop string of vLLM: the detokenizer in the front end finds it and aborts the
request. With an entropy rule the stream is closed before the first uncertain token. Every score is
a pass over the whole path. The prefix cache, batch limit and dtype of the generator stay.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from flashedge.engine.base import Chunk, EngineProxy, ExtendRequest, ScoreRequest, StepScores
from flashedge.engine.vllm.codec import HFCodec
from flashedge.engine.vllm.generator import STEP_STOP, VllmGenerator, build_params
from flashedge.engine.vllm.verifier import VllmVerifier
from flashedge.search.step_rules import TOP, EntropyRule
from flashedge.types import BLANK_LINE, MARKERS, FinishReason


class StockGenerator(EngineProxy[VllmGenerator]):
    """The generator with vLLM's own stops instead of boundaries that the scheduler finds."""

    @property
    def speculator(self) -> None:
        """Stock vLLM drafts nothing."""

    @property
    def most_drafted(self) -> int:
        return 0

    @property
    def codec(self) -> HFCodec:
        return self._engine.codec

    def extend(self, request: ExtendRequest) -> AsyncGenerator[Chunk]:
        """End a step at a stop string, or at the marker words as stop tokens."""
        rule = request.step_rule if request.to_boundary else None
        markers = self.codec.rules[MARKERS].holds if rule == MARKERS else frozenset()
        params = build_params(
            replace(
                request, to_boundary=False, entropy_rule=None, each_token=True, token_drafts=False
            ),
            self.codec,
            self.max_model_len,
            stop=[STEP_STOP] if rule == BLANK_LINE else None,
            stop_token_ids=sorted(self.codec.eos_ids | markers),
            include_stop_str_in_output=True,
            detokenize=True,
            logprobs=TOP if request.entropy_rule or request.confidences else 0,
        )
        stream = self._engine.stream(request, params)
        uncertain = request.entropy_rule
        return stream if uncertain is None else cut_before_uncertain(stream, uncertain)


class StockVerifier(EngineProxy[VllmVerifier]):
    """The verifier without reuse of KV or scores."""

    async def score(self, request: ScoreRequest) -> StepScores:
        return await self._engine.score_whole(request)


async def cut_before_uncertain(
    stream: AsyncGenerator[Chunk], rule: EntropyRule
) -> AsyncGenerator[Chunk]:
    """Yield the chunks of `stream` that come before the first uncertain token, then close it."""
    count = 0
    async with aclosing(stream):
        async for chunk in stream:
            kept = rule.count_kept(chunk.entropies, count)
            if kept < len(chunk.entropies):
                yield chunk.cut(kept, FinishReason.BOUNDARY)
                return
            count += kept
            yield chunk
