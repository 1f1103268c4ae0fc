"""The rank of a drawn token, as vLLM counts it."""

from __future__ import annotations

import torch

from flashedge.engine.vllm.inside.sampling.ranks import count_at_least


def test_ranks_are_vllms() -> None:
    """With equal values, and with rows that hold no numbers."""
    random = torch.Generator().manual_seed(0)
    rows = torch.randint(-50, 50, (65, 3000), generator=random).float()
    rows[3], rows[4, :10] = float("nan"), float("-inf")
    drawn = torch.randint(3000, (65, 1), generator=random)
    values = rows.gather(1, drawn)
    found = count_at_least(rows, values)
    assert found.dtype == torch.int64
    assert torch.equal(found, (rows >= values).sum(-1))
    assert found[3] == 0
