"""Counts on a CPU how many tokens are at least as likely as the drawn one.

vLLM computes this rank whenever log-probabilities are asked for, and nothing of ours reads it. Its
own sum over booleans takes a CPU more than twice as long as the log-probabilities themselves.
"""

from __future__ import annotations

import numpy as np
import torch
from vllm.v1.sample.ops import logprobs

_count_in_vllm = logprobs.batched_count_greater_than


def count_at_least(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Stand for vLLM's function. x: (rows, vocab); values: (rows, 1). Returns (rows,) int64."""
    if x.device.type != "cpu":
        counts: torch.Tensor = _count_in_vllm(x, values)
        return counts
    pairs = zip(x.numpy(), values.numpy(), strict=True)
    return torch.tensor([np.count_nonzero(row >= value) for row, value in pairs])
