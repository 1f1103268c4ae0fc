"""Min-p: excludes the tokens that are far less likely than the likeliest.

It comes before top-k and top-p, as in vLLM.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from flashedge.engine.vllm.inside.sampling.rows import IndexedRow, copy_to


def exclude_unlikely(logits: torch.Tensor, sampled: Sequence[IndexedRow]) -> None:
    """Exclude the tokens whose probability is below min-p times the highest one, in place.

    logits: (batch, vocab) float32. Rows whose min-p is 0 stay as they are.
    """
    cut = [(index, row.temperature * math.log(row.min_p)) for index, row in sampled if row.min_p]
    if not cut:
        return
    index = copy_to([i for i, _ in cut], torch.int64, logits.device)
    span = copy_to([least for _, least in cut], logits.dtype, logits.device).unsqueeze(1)
    rows = logits.index_select(0, index)
    least = rows.amax(dim=1, keepdim=True) + span
    logits.index_copy_(0, index, rows.masked_fill(rows < least, float("-inf")))
