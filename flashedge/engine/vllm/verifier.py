"""The verifier engine: scores only new steps, on the KV that the path left in the prefix cache.

vLLM returns output rows only for the tokens that it computes. Tokens whose KV comes from the prefix
cache have none, so rows are aligned from the end. The scores of steps whose rows are missing come
from a score cache. Its keys are hashes of the path up to the step, so that equal paths share them.
"""

import asyncio
import functools
import hashlib
import itertools
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from flashedge.engine.base import EngineView, Health, ScoreRequest, StepScores
from flashedge.engine.vllm.engine import VllmEngine
from flashedge.engine.vllm.engine_options import EngineOptions
from flashedge.engine.vllm.inside.keys import ARGS_KEY, DETERMINISTIC, PROGRAM
from flashedge.engine.vllm.prm.base import AnswerFormat, PrmFormat
from flashedge.errors import ContextOverflow, GenerationFailed, PathOverflow, RequestError
from flashedge.scheduling.determinism import PassShape
from flashedge.types import UNUSED

SCORE_CACHE_ENTRIES = 1 << 17
"""Step scores to keep, in some 17 MB. The KV cache has room for far fewer steps."""
TOKENIZED_PROBLEMS, TOKENIZED_STEPS = 64, 1 << 13
"""Tokenized problems and steps to keep, since a child's path repeats its parent's steps. Chosen by
hand: a tenth could lose steps of a running search, ten times as many would hold ended ones."""
LONG_TEXT = 1 << 15
"""A path of more characters is tokenized off the event loop, since that takes 0.1 s or more."""
_request_numbers = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class _VerifierPrompt:
    token_ids: list[int]
    scored: list[int]
    """(num_steps,) index of each step's scored token."""
    keys: list[bytes]
    """(num_steps,) hash of all tokens up to the end of the step."""


class VllmVerifier(VllmEngine):
    """Implements `engine.base.Verifier` on an AsyncLLM in pooling mode."""

    def __init__(self, options: EngineOptions, prm: PrmFormat | AnswerFormat) -> None:
        super().__init__(replace(options, extra={**prm.engine_extra, **options.extra}))
        self._prm = prm
        if isinstance(prm, PrmFormat):
            self._encode_problem = functools.lru_cache(TOKENIZED_PROBLEMS)(prm.encode_problem)
            self._encode_step = functools.lru_cache(TOKENIZED_STEPS)(prm.encode_step)
        self._score_cache: OrderedDict[bytes, float] = OrderedDict()

    async def score(self, request: ScoreRequest) -> StepScores:
        if len(request.problem.text) + sum(map(len, request.steps)) > LONG_TEXT:
            prompt = await asyncio.to_thread(self._build_prompt, request)
        else:
            prompt = self._build_prompt(request)
        requested = range(request.num_scored, len(prompt.scored))
        keys = prompt.keys
        scores = {i: self._score_cache[keys[i]] for i in requested if keys[i] in self._score_cache}
        cached = len(prompt.token_ids)
        if len(scores) < len(requested):
            rows, cached = await self.compute_rows(prompt.token_ids, request, reuse=True)
            if any(i not in scores and prompt.scored[i] < cached for i in requested):
                # The step's KV is still cached, but its score is not: compute the whole path.
                rows, cached = await self.compute_rows(prompt.token_ids, request, reuse=False)
            for i in requested:
                if prompt.scored[i] >= cached:
                    scores[i] = self._prm.read_score(rows[prompt.scored[i] - cached])
                    self._score_cache[keys[i]] = scores[i]
                    if len(self._score_cache) > SCORE_CACHE_ENTRIES:
                        self._score_cache.popitem(last=False)
        return StepScores(
            scores=tuple(scores[i] for i in requested),
            tokens=len(prompt.token_ids),
            cached_tokens=cached,
        )

    async def score_whole(self, request: ScoreRequest) -> StepScores:
        """Compute the same scores by one pass over the whole path, without any cache."""
        prompt = self._build_prompt(request)
        rows, _ = await self.compute_rows(prompt.token_ids, request, reuse=False)
        scores = [self._prm.read_score(rows[i]) for i in prompt.scored]
        return StepScores(
            scores=tuple(scores[request.num_scored :]),
            tokens=len(prompt.token_ids),
            cached_tokens=0,
        )

    def encode(self, request: ScoreRequest) -> list[int]:
        """Encode a path as the verifier does. Raises PathOverflow, ContextOverflow."""
        return self._build_prompt(request).token_ids

    async def set_replay_shape(self, shape: PassShape) -> None:
        """See `VllmEngine`. Scores of another shape are forgotten."""
        self.clear_score_cache()
        await super().set_replay_shape(shape)

    def clear_score_cache(self) -> None:
        """Forget all scores, so that every step is computed again."""
        self._score_cache.clear()

    def _build_prompt(self, request: ScoreRequest) -> _VerifierPrompt:
        prompt = self._encode_path(request)
        if len(prompt.token_ids) > self.max_model_len:
            problem = self._encode_path(replace(request, steps=()))
            is_path = len(problem.token_ids) < self.max_model_len
            raise (PathOverflow if is_path else ContextOverflow)(
                f"a path of {len(prompt.token_ids)} tokens does not fit the verifier's context of "
                f"{self.max_model_len} tokens",
                hint="lower max_tokens or use a pair with a longer verifier context",
                param="max_tokens",
            )
        return prompt

    def _encode_path(self, request: ScoreRequest) -> _VerifierPrompt:
        if isinstance(self._prm, AnswerFormat):
            answer, upto = self._prm.encode_answer(request.problem, "".join(request.steps))
            key = _begin_key(answer, request).digest()
            return _VerifierPrompt(token_ids=list(answer), scored=[upto - 1], keys=[key])
        ids = list(self._encode_problem(request.problem))
        scored: list[int] = []
        keys: list[bytes] = []
        digest = _begin_key(ids, request)
        for index, text in enumerate(request.steps):
            step, upto = self._encode_step(text, index)
            scored.append(len(ids) + upto - 1)
            ids += step
            digest.update(_to_bytes(step))
            keys.append(digest.digest())
        return _VerifierPrompt(token_ids=ids, scored=scored, keys=keys)

    async def compute_rows(
        self, token_ids: list[int], request: ScoreRequest, *, reuse: bool
    ) -> tuple[torch.Tensor, int]:
        """Run the model on one prompt, with the program and determinism of `request`. Returns the
        rows of computed tokens, (num_tokens - cached, classes), and the number of cached ones.
        reuse: whether the prefix cache may be read."""
        from vllm.inputs import tokens_input
        from vllm.pooling_params import PoolingParams

        ours = {PROGRAM: request.program, DETERMINISTIC: request.deterministic}
        params = PoolingParams(
            task="token_classify",
            skip_reading_prefix_cache=not reuse,
            extra_kwargs={ARGS_KEY: ours},
        )
        result: Any = None
        name = f"prm-{next(_request_numbers)}"
        with self.process.open_request(name) as llm:
            async for output in llm.encode(tokens_input(token_ids), params, name):
                result = output
        if result is None:
            raise GenerationFailed("the verifier engine returned nothing")
        rows = result.outputs.data
        cached = len(token_ids) - len(rows)
        if cached < 0 or (not reuse and cached):
            raise GenerationFailed(
                f"the verifier engine returned {len(rows)} rows for {len(token_ids)} tokens"
            )
        self.process.note_prompt(len(token_ids), cached)
        return rows, cached


class UnusedVerifier(VllmVerifier):
    """Stands for the verifier of a pair that has none. No process is started."""

    def __init__(self, options: EngineOptions) -> None:
        VllmEngine.__init__(self, options)

    async def start(self, *, shrinks: bool = True) -> None:
        """Do nothing."""

    async def view(self) -> EngineView:
        return EngineView(
            running=0,
            waiting=0,
            blocks_used=0,
            blocks_total=0,
            quota_blocks=0,
            block_tokens=self.options.block_tokens,
            block_bytes=0,
            preemptions=0,
        )

    def health(self) -> Health:
        return Health(state=UNUSED, kv_memory="own")

    async def score(self, request: ScoreRequest) -> StepScores:
        raise RequestError("the pair has no verifier", hint="use a pair with one", param="pair")


def _begin_key(ids: Sequence[int], request: ScoreRequest) -> hashlib.blake2b:
    """Begin to hash a path for its scores' keys, which differ for deterministic requests."""
    kind = b"verified" if request.deterministic else b""
    return hashlib.blake2b(_to_bytes(ids), digest_size=16, person=kind)


def _to_bytes(ids: Sequence[int]) -> bytes:
    return array("q", ids).tobytes()
