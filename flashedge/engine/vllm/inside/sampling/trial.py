"""Tries the sampling kernel on the card before the first request, against its naive twin."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from flashedge.engine.vllm.inside.sampling.naive import hash_tokens, sample
from flashedge.engine.vllm.inside.sampling.rows import SampledRow, pack_rows

log = logging.getLogger(__name__)

Sampler = Callable[[torch.Tensor, torch.Tensor], None]
"""`fused.mark_winners`."""

ROWS = tuple(
    SampledRow(seed=7, temperature=0.8, top_k=k, top_p=p, prompt_len=position, output=[])
    for position, (k, p) in enumerate(
        [(0, 1.0), (0, 1.0), (0, 0.95), (0, 0.5), (20, 1.0), (20, 0.9)]
    )
)


def load_kernel(vocab: int, device: torch.device) -> Sampler | None:
    """Compile the kernel for this card and compare it with its twin.

    Returns None, and says why in the log, where it can't run or draws other tokens: then PyTorch
    draws them. Compiling at the first request instead would delay that by seconds.
    """
    try:
        from flashedge.engine.vllm.inside.sampling.fused import mark_winners

        compare_samplers(mark_winners, vocab, device)
    except Exception as error:  # no compiler, a card that Triton does not know, ...
        log.warning("tokens are drawn by PyTorch, which is slower than the kernel: %s", error)
        return None
    return mark_winners


def compare_samplers(mark_winners: Sampler, vocab: int, device: torch.device) -> None:
    """Raises RuntimeError if the kernel draws other tokens than its twin from random logits."""
    random = torch.Generator().manual_seed(0)
    logits = (torch.randn(len(ROWS), vocab, generator=random) * 3).to(device)
    indexed = list(enumerate(ROWS))
    expected = logits.clone()
    sample(expected, indexed, hash_tokens(vocab, device))
    mark_winners(logits, pack_rows(indexed, device))
    drawn, wanted = logits.argmax(1).tolist(), expected.argmax(1).tolist()
    if drawn != wanted:
        raise RuntimeError(f"the kernel draws {drawn} where PyTorch draws {wanted}")
