"""Sampling as argmax(logits / T + Gumbel noise), the noise a pure function of (seed, position).

The noise of the token at absolute position p under seed s is hash(s, p, token id), whatever the
batch, the request or the preemptions before it. vLLM's own seeded sampling restarts its random
stream with each request, so a path that ends at a boundary and is submitted again would draw other
tokens. Requests run at temperature 0, at which vLLM takes the argmax of what this returns.

vLLM applies penalties to the logits later than this processor, so callers refuse penalties.

`sampling.fused` draws the tokens on a card and `sampling.on_cpu` on a CPU, both as `sampling.naive`
would. On a card none of them makes the host wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from flashedge.engine.vllm.inside.keys import ARGS_KEY, PLAIN_SAMPLING
from flashedge.engine.vllm.inside.sampling import naive, on_cpu
from flashedge.engine.vllm.inside.sampling.min_p import exclude_unlikely
from flashedge.engine.vllm.inside.sampling.rows import IndexedRow, SampledRow, pack_rows
from flashedge.engine.vllm.inside.sampling.trial import load_kernel
from flashedge.types import MAX_SEED


class PositionNoise(LogitsProcessor):
    """Applies temperature, the cuts of unlikely tokens, and noise to requests with
    `extra_args["flashedge"]`.

    The logits of other requests stay as they are.
    """

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self._device = device
        self._rows: dict[int, SampledRow] = {}
        """By the request's index in the batch."""
        self._token_hashes: torch.Tensor | None = None
        is_plain = vllm_config.additional_config.get(ARGS_KEY, {}).get(PLAIN_SAMPLING, False)
        self._kernel = (
            load_kernel(vllm_config.model_config.get_vocab_size(), device)
            if device.type == "cuda" and not is_plain
            else None
        )
        self._draw, self._hash_tokens = naive.sample, naive.hash_tokens
        if device.type == "cpu" and not is_plain:
            self._draw, self._hash_tokens = on_cpu.mark_winners, on_cpu.hash_tokens

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for index in batch_update.removed:
            self._rows.pop(index, None)
        for index, params, prompt_ids, output_ids in batch_update.added:
            row = None if prompt_ids is None else make_row(params, len(prompt_ids), output_ids)
            if row is None:
                self._rows.pop(index, None)
            else:
                self._rows[index] = row
        for source, target, direction in batch_update.moved:
            moved, displaced = self._rows.pop(source, None), self._rows.pop(target, None)
            if moved is not None:
                self._rows[target] = moved
            if direction == MoveDirectionality.SWAP and displaced is not None:
                self._rows[source] = displaced

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Make the drawn token of each sampled row its argmax, in place.

        logits: (batch, vocab) float32.
        """
        sampled = [(i, r) for i, r in self._rows.items() if r.temperature > 0 and i < len(logits)]
        if sampled:
            self.mark_winners(logits, sampled)
        return logits

    def mark_winners(self, logits: torch.Tensor, sampled: Sequence[IndexedRow]) -> None:
        """Make the drawn token of each of these rows its argmax, in place."""
        exclude_unlikely(logits, sampled)
        if self._kernel is not None:
            self._kernel(logits, pack_rows(sampled, self._device))
        else:
            self._draw(logits, sampled, self._get_token_hashes(logits.shape[1]))

    def _get_token_hashes(self, vocab: int) -> torch.Tensor:
        if self._token_hashes is None or len(self._token_hashes) != vocab:
            self._token_hashes = self._hash_tokens(vocab, self._device)
        return self._token_hashes


def make_row(params: SamplingParams, prompt_len: int, output: Sequence[int]) -> SampledRow | None:
    """Describe how a request's next token is drawn: the one behind prompt and output.

    Returns None for a request that vLLM's own sampler draws.
    Of a request outside any run the seed is vLLM's, which differs from choice to choice.
    """
    args: dict[str, Any] = (params.extra_args or {}).get(ARGS_KEY) or {}
    if "temperature" not in args:
        return None
    seed = args.get("seed")
    return SampledRow(
        seed=params.seed & MAX_SEED if seed is None else seed,
        temperature=args["temperature"],
        top_k=args["top_k"],
        top_p=args["top_p"],
        min_p=args.get("min_p", 0.0),
        prompt_len=prompt_len,
        output=output,
    )
