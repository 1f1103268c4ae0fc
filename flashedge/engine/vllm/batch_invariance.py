"""Whether vLLM's batch-invariant kernels are used: the setting `batch_invariant`.

A sum of floats depends on its order. The fast kernels split their sums by the size of the batch, so
the last bits of a logit, and now and then a token, depend on what else is computed. In this mode
vLLM 0.32 replaces them:

- Matrix products, softmax and mean by Triton kernels with one order (compute capability 8.x), or
  by cuBLASLt without a workspace, which then can't split a sum (9.0 and later). RMSNorm by Triton.
- Attention is computed in one split. FLASH_ATTN, TRITON_ATTN and FLEX_ATTENTION can do that, and
  vLLM's own choice is one of these. FlashAttention 4 becomes 2.
- AWQ weights are unpacked for an ordinary product, without Marlin. So are FP8 weights where their
  kernel splits sums. GPTQ weights keep Marlin, which is not batch-invariant.
- On several cards, sums between cards use one algorithm.

vLLM takes all of this from one environment variable. The noise that draws
tokens never depends on the batch (`inside.sampling`). The self-test below says whether it worked.

Checked with vLLM 0.32.0 by reading; no card has run it under FlashEdge.
"""

import asyncio
import logging
import random
import time
from contextlib import aclosing
from typing import Any

from flashedge.config import Config
from flashedge.engine.base import ExtendRequest
from flashedge.engine.platform import runs_on_cpu
from flashedge.engine.self_test_turns import LONGEST_S, Turns
from flashedge.engine.vllm.generator import VllmGenerator, build_params
from flashedge.errors import ConfigError
from flashedge.profiler import ProfileError
from flashedge.profiler.gpu import read_cards
from flashedge.scheduling.kv.split import EngineRole
from flashedge.types import Message, Sampling, TokenIds

log = logging.getLogger(__name__)

LEAST_CAPABILITY = (8, 0)


def check_batch_invariance(config: Config, nvml: Any = None) -> bool:
    """Whether the engines are to use batch-invariant kernels.

    Raises ConfigError if a card is too old for them. Where the driver does not tell, vLLM decides.
    """
    if not config.batch_invariant:
        return False
    if runs_on_cpu():
        log.warning("batch_invariant has no effect on a CPU; the self-test says what holds there")
        return False
    try:
        cards = read_cards(nvml)
    except ProfileError as error:
        log.warning("batch_invariant: the card can't be checked: %s", error)
        return True
    for card in cards:
        if card.capability is not None and card.capability < LEAST_CAPABILITY:
            have, need = (".".join(map(str, c)) for c in (card.capability, LEAST_CAPABILITY))
            raise ConfigError(
                f"batch_invariant needs compute capability {need}, and {card.name} has {have}",
                hint="flashedge config set batch_invariant false",
                param="batch_invariant",
            )
    return True


TOKENS = 24
"""Tokens that each request of the batch test draws."""
BATCH = 8
LEAST_CONTEXT, MOST_CONTEXT = 128, 4096
"""Lengths at which prefill in one chunk is compared with prefill after a cached prefix."""
PREFIX_PARTS = (16, 8)
"""The cached prefix is the context divided by one of these."""
_PROMPT = (Message(role="user", content="What is 12 + 7?"),)


async def check_invariance(generator: VllmGenerator, turns: Turns) -> dict[str, Any]:
    """Run the self-test. It takes well under a second for a small model. Raises TimeoutError.

    Returns:
        `batch_invariant`: whether every short comparison was bit-equal.
        `invariant_tokens`: the longest context up to which prefill was bit-equal too; 0 if none.
        `compared`, `max_logprob_difference`: of the short comparisons.
    """
    found = await _compare_batches(generator, turns)
    return {**found, "invariant_tokens": await _measure_invariant_context(generator, turns)}


async def _compare_batches(generator: VllmGenerator, turns: Turns) -> dict[str, Any]:
    """Compare decode in a batch with decode alone and with a fresh prefill of the same tokens."""
    prompt = generator.codec.encode_chat(_PROMPT)
    requests = [build_request(prompt, seed=seed, max_tokens=TOKENS) for seed in range(BATCH)]
    async with turns.take(EngineRole.GENERATOR):
        together = await asyncio.gather(*(draw_tokens(generator, r) for r in requests))
    pairs: list[tuple[float, float]] = []
    is_same = True
    for request, (ids, logprobs) in zip(requests[:2], together, strict=False):
        async with turns.take(EngineRole.GENERATOR):
            alone_ids, alone = await draw_tokens(generator, request)
        is_same &= alone_ids == ids
        pairs += zip(logprobs, alone, strict=False)
        for cut in range(4, len(ids), 7):  # prefill of prompt + ids[:cut], then one token
            again = build_request((*prompt, *ids[:cut]), seed=request.seed, max_tokens=1)
            async with turns.take(EngineRole.GENERATOR):
                again_ids, again_logprobs = await draw_tokens(generator, again)
            is_same &= again_ids == ids[cut : cut + 1]
            pairs.append((logprobs[cut], again_logprobs[0]))
    difference = max(abs(a - b) for a, b in pairs)
    return {
        "batch_invariant": is_same and difference == 0.0,
        "compared": len(pairs),
        "max_logprob_difference": difference,
    }


async def _measure_invariant_context(generator: VllmGenerator, turns: Turns) -> int:
    """Find the longest tested context whose logits do not depend on the chunks of its prefill."""
    draw, longest = random.Random(0), 0
    vocabulary = generator.codec.encode("0123456789+-=. ")
    most = min(MOST_CONTEXT, generator.max_model_len - 2)  # with room for a token
    for length in (most >> halvings for halvings in range(most.bit_length(), -1, -1)):
        if length < LEAST_CONTEXT:
            continue
        for part in PREFIX_PARTS:
            tokens = tuple(draw.choice(vocabulary) for _ in range(length))  # none is cached
            prefix = build_request(tokens[: length // part], seed=0, max_tokens=1)
            request = build_request(tokens, seed=0, max_tokens=1)
            async with turns.take(EngineRole.GENERATOR):
                began = time.monotonic()
                await draw_tokens(generator, prefix)
                behind = await draw_tokens(generator, request, use_cache=True)
                if behind != await draw_tokens(generator, request):
                    return longest
                took_s = time.monotonic() - began
        longest = length
        if 2 * took_s > LONGEST_S:
            return longest
    return longest


def build_request(tokens: TokenIds, **options: Any) -> ExtendRequest:
    """options: seed and max_tokens, and further fields of the request."""
    sampling = Sampling(temperature=1.0)
    return ExtendRequest(token_ids=tokens, sampling=sampling, to_boundary=False, **options)


async def draw_tokens(
    generator: VllmGenerator, request: ExtendRequest, *, use_cache: bool = False
) -> tuple[TokenIds, tuple[float, ...]]:
    """The ids and log-probabilities of a request's tokens. All KV is computed again unless
    `use_cache`."""
    params = build_params(
        request, generator.codec, generator.max_model_len, skip_reading_prefix_cache=not use_cache
    )
    async with aclosing(generator.stream(request, params)) as stream:
        chunks = [chunk async for chunk in stream]
    ids = tuple(i for c in chunks for i in c.token_ids)
    return ids, tuple(p for c in chunks for p in c.logprobs)
