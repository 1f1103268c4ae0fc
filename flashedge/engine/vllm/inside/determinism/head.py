"""The head of a verifier in a fixed shape, for paths whose scores have to be the same bits.

vLLM applies the head of a token classifier to all rows of a request at once, and how many these are
depends on what of the path was found in the cache. In passes the rows are cut into tiles of one
size, counted from the path's start, and the last one is padded.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.pooler.tokwise.heads import TokenClassifierPoolerHead

from flashedge.engine.vllm.inside.determinism.windows import read_args
from flashedge.engine.vllm.inside.keys import DETERMINISTIC

TILE = 32
"""Rows. It divides every window, so that a tile begins where a cached prefix ends."""
_forward_chunk = TokenClassifierPoolerHead.forward_chunk


def forward_chunk(
    self: Any, pooled_data: torch.Tensor | None, pooling_param: Any
) -> torch.Tensor | None:
    """Stands for vLLM's method. Of other requests it is vLLM's own."""
    if pooled_data is None or not read_args(pooling_param).get(DETERMINISTIC):
        return _forward_chunk(self, pooled_data, pooling_param)
    count = pooled_data.shape[0]
    padded = pooled_data.new_zeros((-(-count // TILE) * TILE, *pooled_data.shape[1:]))
    padded[:count] = pooled_data
    tiles = [_forward_chunk(self, tile, pooling_param) for tile in padded.split(TILE)]
    return torch.cat(tiles)[:count]
