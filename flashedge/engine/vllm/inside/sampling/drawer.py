"""Draws the tokens of a batch by what is fastest on its device: the kernel, or PyTorch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from vllm.config import VllmConfig

from flashedge.engine.vllm.inside.keys import ARGS_KEY, PLAIN_SAMPLING
from flashedge.engine.vllm.inside.sampling import naive, on_cpu
from flashedge.engine.vllm.inside.sampling.naive import (
    IndexedRow,
    SampledRow,
    exclude_unlikely,
    hash_tokens,
    pack_rows,
    sample,
)


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
        """Mark the drawn tokens as `naive.sample` does."""
        exclude_unlikely(logits, sampled)
        if self._kernel is not None:
            return self._kernel(logits, pack_rows(sampled, self._device))
        vocab = logits.shape[1]
        if self._token_hashes is None or len(self._token_hashes) != vocab:
            self._token_hashes = self._hash_tokens(vocab, self._device)
        self._draw(logits, sampled, self._token_hashes)


log = logging.getLogger(__name__)

Sampler = Callable[[torch.Tensor, torch.Tensor], None]

ROWS = tuple(
    SampledRow(seed=7, temperature=0.8, top_k=k, top_p=p, prompt_len=position, output=[])
    for position, (k, p) in enumerate(
        [(0, 1.0), (0, 1.0), (0, 0.95), (0, 0.5), (20, 1.0), (20, 0.9)]
    )
)


def load_kernel(vocab: int, device: torch.device) -> Sampler | None:
    """Compile the kernel, before the first request. None, with the reason in the log, where it
    can't run or draws other tokens than its twin."""
    try:
        from flashedge.engine.vllm.inside.sampling.fused import mark_winners

        compare_samplers(mark_winners, vocab, device)
    except Exception as error:  # no compiler, a card that Triton does not know, ...
        log.warning("tokens are drawn by PyTorch, which is slower than the kernel: %s", error)
        return None
    return mark_winners


def compare_samplers(mark_winners: Sampler, vocab: int, device: torch.device) -> None:
    random = torch.Generator().manual_seed(0)
    logits = (torch.randn(len(ROWS), vocab, generator=random) * 3).to(device)
    indexed = list(enumerate(ROWS))
    expected = logits.clone()
    sample(expected, indexed, hash_tokens(vocab, device))
    mark_winners(logits, pack_rows(indexed, device))
    drawn, wanted = logits.argmax(1).tolist(), expected.argmax(1).tolist()
    if drawn != wanted:
        raise RuntimeError(f"the kernel draws {drawn} where PyTorch draws {wanted}")
