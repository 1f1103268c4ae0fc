"""The KV tensors of an engine process, block by block, and the memory behind them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch

from flashedge.engine.vllm.inside.kv.granules import Granules, Pieces
from flashedge.engine.vllm.inside.kv.pages import Pages


class KvRange:
    """layers: (blocks, …) views of `pages.tensor`, one for each layer that has KV of its own;
    block_bytes: of one block in all of them; mechanism: what becomes of released memory. No block
    has memory at first."""

    def __init__(self, pages: Pages, views: Iterable[torch.Tensor], blocks: int) -> None:
        """views: (blocks, …), or (blocks * k, …) where the kernel's blocks are smaller."""
        self._pages = pages
        self.layers = [
            view.unflatten(0, (blocks, -1)) for view in {v.data_ptr(): v for v in views}.values()
        ]
        base = pages.tensor.data_ptr()
        pieces = [
            Pieces(
                start=layer.data_ptr() - base,
                stride=layer.stride(0) * layer.element_size(),
                size=_span(layer[0]) * layer.element_size(),
            )
            for layer in self.layers
        ]
        self._granules = Granules(pieces, blocks, pages.granule)

    @property
    def mechanism(self) -> str:
        return self._pages.mechanism

    @property
    def block_bytes(self) -> int:
        return block_bytes(self.layers)

    def claim(self, block_ids: Collection[int]) -> None:
        """Blocks are about to be used: they have memory from now on. Raises MemoryError when there
        is too little; then nothing has changed."""
        taken = []
        try:
            for run in self._granules.claim(block_ids):
                self._pages.take(*run)
                taken.append(run)
        except MemoryError:
            self._granules.release(block_ids)
            for run in taken:
                self._pages.give(*run)
            raise

    def release(self, block_ids: Collection[int]) -> int:
        """Nobody needs what these blocks hold. The bytes that went back."""
        return sum(self._pages.give(*run) for run in self._granules.release(block_ids))


def block_bytes(layers: Iterable[torch.Tensor]) -> int:
    """Of one block in all layers."""
    return sum(layer[0].numel() * layer.element_size() for layer in layers)


def _span(block: torch.Tensor) -> int:
    """Elements from the first to the last."""
    return 1 + sum((n - 1) * step for n, step in zip(block.shape, block.stride(), strict=True))
