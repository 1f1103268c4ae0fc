"""Checks the setting `batch_invariant`, and tests whether an engine's kernels are batch-invariant.

A sum of floats depends on its order. The fast kernels split their sums by the size of the batch, so
the last bits of a logit, and now and then a token, depend on what else is computed. The setting
makes vLLM 0.32 replace them:

- Linear layers, softmax, mean and RMSNorm use Triton kernels with one order. Their tiles are tuned
  for few shapes: Qwen3-1.7B's, and on compute capability 12.x those of Qwen3-4B and 8B. Other
  products use cuBLASLt without a workspace, which then can't split a sum, but Triton on 8.x.
- Attention is computed in one split. FLASH_ATTN, TRITON_ATTN and FLEX_ATTENTION can do that, and
  vLLM chooses one of them. FlashAttention 2 is used in place of FlashAttention 4.
- AWQ weights are unpacked for an ordinary product, without Marlin. So are FP8 weights where their
  kernel splits sums. GPTQ weights keep Marlin, which is not batch-invariant.
- On several cards, sums between cards use one algorithm.

One environment variable of vLLM switches all of this on (`compat`). The noise that draws tokens
never depends on the batch (`inside.sampling`). Checked by reading the code of vLLM 0.32.0.
"""

import asyncio
import logging
import random
import time
from contextlib import aclosing
from itertools import takewhile
from typing import Any

from flashedge.config import Config
from flashedge.engine.base import ExtendRequest
from flashedge.engine.layout import find_card_layout
from flashedge.engine.platform import runs_on_cpu
from flashedge.engine.self_test_turns import Turns
from flashedge.engine.vllm.generator import VllmGenerator, build_params
from flashedge.errors import ConfigError, EngineError
from flashedge.scheduling.kv.split import EngineRole
from flashedge.types import Message, Sampling, TokenIds

log = logging.getLogger(__name__)

LEAST_CAPABILITY = (8, 0)
"""The lowest compute capability for which vLLM has such kernels."""


def check_batch_invariance(config: Config, nvml: Any = None) -> bool:
    """Whether the engines should use batch-invariant kernels.

    Raises ConfigError if an engine's card is too old. If the driver does not answer, vLLM decides.
    """
    if not config.batch_invariant:
        return False
    if runs_on_cpu():
        log.warning("batch_invariant has no effect on a CPU; the self-test says what holds there")
        return False
    try:
        layout = find_card_layout(config, nvml)
    except EngineError as error:
        log.warning("batch_invariant: the card can't be checked: %s", error)
        return True
    for card in (*layout.generator.cards, *layout.verifier.cards):
        if card.capability is not None and card.capability < LEAST_CAPABILITY:
            have, need = (".".join(map(str, c)) for c in (card.capability, LEAST_CAPABILITY))
            raise ConfigError(
                f"batch_invariant needs compute capability {need}, and {card.name} has {have}",
                hint="flashedge config set batch_invariant false",
                param="batch_invariant",
            )
    return True


TOKENS = 24
"""Tokens that each request of the batch test draws. Chosen by hand: two or three seldom differ even
if the kernels do; hundreds would keep users waiting."""
BATCH = 8
"""Requests that are drawn together. Two of them are drawn again alone. Chosen by hand: kernels may
split two as they split one, and eighty would keep users waiting."""
LEAST_CONTEXT, MOST_CONTEXT = 128, 4096
"""Least and most tokens at which prefill is compared with prefill after a cached prefix. Chosen by
hand: few searches have less context, and more would take a CPU too long."""
PREFIX_PARTS = (16, 8)
"""The cached prefix is a 16th, then an 8th of the context: two other sizes for the kernels."""
LONGEST_S = 2.0
"""Seconds that a context may take in one turn. A longer context that would take more is not tested.
Chosen by hand: a tenth ends the test at short contexts, and ten times as many hold up users."""
_PROMPT = (Message(role="user", content="What is 12 + 7?"),)


async def check_invariance(generator: VllmGenerator, turns: Turns) -> dict[str, Any]:
    """Test whether the kernels are batch-invariant. Raises EngineDead, and TimeoutError by `turns`.

    Returns:
        `batch_invariant`: whether all short comparisons were bit-equal.
        `invariant_tokens`: the longest context up to which a cached prefix changed no bit, or 0.
        `compared`: the number of short comparisons, each of one token.
        `max_logprob_difference`: their largest difference, in nats.
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
        # Behind a token that differs, log-probabilities are those of another text.
        rows = zip(ids, logprobs, alone_ids, alone, strict=False)
        pairs += [row[1::2] for row in takewhile(lambda row: row[0] == row[2], rows)]
        for cut in range(4, len(ids), 7):  # three tokens of a request are enough
            again = build_request((*prompt, *ids[:cut]), seed=request.seed, max_tokens=1)
            async with turns.take(EngineRole.GENERATOR):
                again_ids, again_logprobs = await draw_tokens(generator, again)
            is_same &= again_ids == ids[cut : cut + 1]
            if again_ids[0] == ids[cut]:
                pairs.append((logprobs[cut], again_logprobs[0]))
    difference = max((abs(a - b) for a, b in pairs), default=0.0)
    return {
        "batch_invariant": is_same and difference == 0.0,
        "compared": len(pairs),
        "max_logprob_difference": difference,
    }


async def _measure_invariant_context(generator: VllmGenerator, turns: Turns) -> int:
    """Find the longest tested context up to which a cached prefix does not change a token."""
    draw, longest = random.Random(0), 0
    vocabulary = generator.codec.encode("0123456789+-=. ")
    most = min(MOST_CONTEXT, generator.max_model_len - 2)  # with room for a new token
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
                after_prefix = await draw_tokens(generator, request, use_cache=True)
                if after_prefix != await draw_tokens(generator, request):
                    return longest
                took_s = time.monotonic() - began
        longest = length
        if 2 * took_s > LONGEST_S:
            return longest
    return longest


def build_request(tokens: TokenIds, **options: Any) -> ExtendRequest:
    """Build a request at temperature 1. options: seed, max_tokens and any other fields."""
    sampling = Sampling(temperature=1.0)
    return ExtendRequest(token_ids=tokens, sampling=sampling, to_boundary=False, **options)


async def draw_tokens(
    generator: VllmGenerator, request: ExtendRequest, *, use_cache: bool = False
) -> tuple[TokenIds, tuple[float, ...]]:
    """Draw a request's tokens, on cached KV if `use_cache`. Returns ids and log-probabilities."""
    params = build_params(
        request, generator.codec, generator.max_model_len, skip_reading_prefix_cache=not use_cache
    )
    async with aclosing(generator.stream(request, params)) as stream:
        chunks = [chunk async for chunk in stream]
    ids = tuple(token for chunk in chunks for token in chunk.token_ids)
    return ids, tuple(logprob for chunk in chunks for logprob in chunk.logprobs)
