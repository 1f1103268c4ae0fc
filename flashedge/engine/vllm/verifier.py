"""The verifier engine: scores only new steps, on the KV that the path left in the cache.

vLLM returns output rows only for the tokens that it computes; those whose KV comes from the
prefix cache have none. So rows are aligned from the end, and scores of earlier steps are kept
here: by path prefix, since a twin path (a duplicate, a speculated step) may have computed them.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from flashedge.engine.base import ScoreRequest, StepScores
from flashedge.engine.vllm.engine import VllmEngine
from flashedge.engine.vllm.engine_options import EngineOptions
from flashedge.engine.vllm.prm.base import PrmFormat
from flashedge.engine.vllm.translate import translated
from flashedge.errors import ContextOverflow, GenerationFailed

MEMO_ENTRIES = 1 << 17  # step scores kept; 17 MB or so, far more than the KV cache can hold
TOKENIZED_PROBLEMS, TOKENIZED_STEPS = 64, 1 << 13  # kept: a path's steps come back with each child
_ids = itertools.count()


@dataclass(frozen=True, slots=True)
class _Path:
    """token_ids: of the whole prompt; scored: (num_steps,) index of each step's scored token;
    keys: (num_steps,) hash of the prompt up to and with that token."""

    token_ids: list[int]
    scored: list[int]
    keys: list[bytes]


class VllmVerifier(VllmEngine):
    """Implements `engine.base.Verifier` on one AsyncLLM in pooling mode."""

    def __init__(self, options: EngineOptions, prm: PrmFormat) -> None:
        super().__init__(replace(options, extra={**prm.engine_extra, **options.extra}))
        self._prm = prm
        self._prefix = functools.lru_cache(TOKENIZED_PROBLEMS)(prm.prefix)
        self._step = functools.lru_cache(TOKENIZED_STEPS)(prm.step)
        self._memo: OrderedDict[bytes, float] = OrderedDict()

    async def score(self, request: ScoreRequest) -> StepScores:
        path = self._path(request)
        wanted = range(request.num_scored, len(path.scored))
        known = {i: self._memo[path.keys[i]] for i in wanted if path.keys[i] in self._memo}
        if len(known) == len(wanted):
            tokens = len(path.token_ids)
            return StepScores(
                scores=tuple(known[i] for i in wanted), tokens=tokens, cached_tokens=tokens
            )
        rows, cached = await self._rows(path.token_ids, reuse=True)
        missing = [i for i in wanted if i not in known and path.scored[i] < cached]
        if missing:  # KV outlived the memo's entry: the rows exist only in a whole pass
            rows, cached = await self._rows(path.token_ids, reuse=False)
        for i in wanted:
            if path.scored[i] >= cached:
                known[i] = self._prm.score(rows[path.scored[i] - cached])
                self._remember(path.keys[i], known[i])
        return StepScores(
            scores=tuple(known[i] for i in wanted),
            tokens=len(path.token_ids),
            cached_tokens=cached,
        )

    async def score_whole(self, request: ScoreRequest) -> StepScores:
        """The same scores by one pass over the whole path, nothing re-used: the naive twin."""
        path = self._path(request)
        rows, _ = await self._rows(path.token_ids, reuse=False)
        scores = [self._prm.score(rows[i]) for i in path.scored]
        return StepScores(
            scores=tuple(scores[request.num_scored :]),
            tokens=len(path.token_ids),
            cached_tokens=0,
        )

    def forget_scores(self) -> None:
        """Drop the scores kept from before (for measurements: the KV alone is not all it keeps)."""
        self._memo.clear()

    def _path(self, request: ScoreRequest) -> _Path:
        ids = list(self._prefix(request.problem))
        scored: list[int] = []
        keys: list[bytes] = []
        digest = hashlib.blake2b(_bytes(ids), digest_size=16)
        for index, text in enumerate(request.steps):
            step, upto = self._step(text, index)
            scored.append(len(ids) + upto - 1)
            ids += step
            digest.update(_bytes(step))
            keys.append(digest.digest())
        if len(ids) > self.max_model_len:
            raise ContextOverflow(
                f"a path of {len(ids)} tokens does not fit the verifier's context of "
                f"{self.max_model_len} tokens",
                hint="lower max_tokens or use a pair with a longer verifier context",
                param="max_tokens",
            )
        return _Path(ids, scored, keys)

    async def _rows(self, token_ids: list[int], *, reuse: bool) -> tuple[torch.Tensor, int]:
        """(rows, cached): rows (num_tokens - cached, classes) of the tokens after the cached."""
        from vllm import PoolingParams

        params = PoolingParams(task="token_classify", skip_reading_prefix_cache=not reuse)
        result: Any = None
        with translated("verifier"):
            llm = self._process.llm()
            async for output in llm.encode(
                {"prompt_token_ids": token_ids}, params, f"prm-{next(_ids)}"
            ):
                result = output
        if result is None:
            raise GenerationFailed("the verifier engine returned nothing")
        rows = result.outputs.data
        cached = len(token_ids) - len(rows)
        if cached < 0 or (not reuse and cached):
            raise GenerationFailed(
                f"the verifier engine returned {len(rows)} rows for {len(token_ids)} tokens"
            )
        return rows, cached

    def _remember(self, key: bytes, score: float) -> None:
        self._memo[key] = score
        if len(self._memo) > MEMO_ENTRIES:
            self._memo.popitem(last=False)


def _bytes(ids: Sequence[int]) -> bytes:
    return array("q", ids).tobytes()
