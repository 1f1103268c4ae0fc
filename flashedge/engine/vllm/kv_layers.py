"""The KV tensors of a model runner, layer by layer: (blocks, …) views of what vLLM allocated.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def kv_layers(runner: Any) -> list[torch.Tensor]:
    """(blocks, …) views of each layer's KV; layers that share a view once."""
    found: dict[int, torch.Tensor] = {}
    for layer in runner.kv_caches:
        found.setdefault(layer.data_ptr(), layer)
    return list(found.values())


def piece_bytes(layer: torch.Tensor) -> int:
    """Of one block in one layer. Raises RuntimeError where a block is not in one piece."""
    block = layer[0]
    span = 1 + sum((n - 1) * step for n, step in zip(block.shape, block.stride(), strict=True))
    if span != block.numel():
        raise RuntimeError(f"a KV block of {tuple(layer.shape)} does not lie in one piece")
    return span * layer.element_size()


def block_bytes(layers: Iterable[torch.Tensor]) -> int:
    """Of one block in all layers."""
    return sum(piece_bytes(layer) for layer in layers)
