"""Are this machine's kernels batch-invariant? Asked of the running engine at start-up.

Search claims "the same tree" bit for bit only where decode in a batch, decode alone and a fresh
prefill of the same tokens give bit-equal logits. The log-probabilities of sampled tokens show it.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from flashedge.engine.base import Chunk, ExtendRequest
from flashedge.engine.vllm.generator import VllmGenerator, edge_params
from flashedge.types import Message, Sampling

TOKENS = 24
BATCH = 8
_PROMPT = (Message(role="user", content="What is 12 + 7?"),)


async def batch_invariance(generator: VllmGenerator) -> dict[str, Any]:
    """`{"batch_invariant": bool, "compared": tokens, "max_logprob_difference": float}`."""
    prompt = generator.codec.encode_chat(_PROMPT)
    requests = [
        ExtendRequest(
            token_ids=prompt,
            seed=seed,
            sampling=Sampling(temperature=1.0),
            max_tokens=TOKENS,
            to_boundary=False,
        )
        for seed in range(BATCH)
    ]
    together = await asyncio.gather(*(_run(generator, r) for r in requests))
    pairs: list[tuple[float, float]] = []
    same = True
    for request, (ids, logprobs) in zip(requests[:2], together, strict=False):
        alone_ids, alone = await _run(generator, request)
        same &= alone_ids == ids
        pairs += zip(logprobs, alone, strict=False)
        for cut in range(4, len(ids), 7):  # prefill of prompt + ids[:cut], then one token
            again_ids, again = await _run(generator, request, prefix=ids[:cut])
            same &= again_ids[:1] == ids[cut : cut + 1]
            pairs.append((logprobs[cut], again[0]))
    difference = max(abs(a - b) for a, b in pairs)
    return {
        "batch_invariant": same and difference == 0.0,
        "compared": len(pairs),
        "max_logprob_difference": difference,
    }


async def _run(
    generator: VllmGenerator, request: ExtendRequest, prefix: tuple[int, ...] = ()
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """(ids, logprobs), computed without the prefix cache; with `prefix` only one token."""
    request = ExtendRequest(
        token_ids=(*request.token_ids, *prefix),
        seed=request.seed,
        sampling=request.sampling,
        max_tokens=1 if prefix else request.max_tokens,
        to_boundary=False,
    )
    params = edge_params(
        request, generator.codec, generator.max_model_len, skip_reading_prefix_cache=True
    )
    chunks: list[Chunk] = []
    async with aclosing(generator.stream(request, params)) as stream:
        async for chunk in stream:
            chunks.append(chunk)
    ids = tuple(i for c in chunks for i in c.token_ids)
    return ids, tuple(p for c in chunks for p in c.logprobs)
