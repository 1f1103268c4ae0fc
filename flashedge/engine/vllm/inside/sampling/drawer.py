"""Draws the tokens of a batch by what is fastest on its device: the kernel, or PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from vllm.config import VllmConfig

from flashedge.engine.vllm.inside.keys import ARGS_KEY, PLAIN_SAMPLING
from flashedge.engine.vllm.inside.sampling import naive, on_cpu
from flashedge.engine.vllm.inside.sampling.min_p import exclude_unlikely
from flashedge.engine.vllm.inside.sampling.rows import IndexedRow, pack_rows
from flashedge.engine.vllm.inside.sampling.trial import load_kernel


class TokenDrawer:
    """`fused` on a card and `on_cpu` on a CPU, both as `naive` would. On a card none of them makes
    the host wait."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        self._device = device
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

    def mark_winners(self, logits: torch.Tensor, sampled: Sequence[IndexedRow]) -> None:
        """Make the drawn token of each of these rows its argmax, in place.

        logits: (batch, vocab) float32.
        """
        exclude_unlikely(logits, sampled)
        if self._kernel is not None:
            self._kernel(logits, pack_rows(sampled, self._device))
        else:
            self._draw(logits, sampled, self._get_token_hashes(logits.shape[1]))

    def _get_token_hashes(self, vocab: int) -> torch.Tensor:
        if self._token_hashes is None or len(self._token_hashes) != vocab:
            self._token_hashes = self._hash_tokens(vocab, self._device)
        return self._token_hashes
