"""The KV tensors of an engine process, block by block, and the memory behind them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

import torch

from flashedge.engine.vllm.inside.kv.granules import BlockLayout, Granules, GranuleSpan
from flashedge.engine.vllm.inside.kv.pages import Pages

log = logging.getLogger(__name__)


class KvRange:
    """Maps memory for the blocks of a KV tensor. No block has memory at first."""

    def __init__(self, pages: Pages, views: Iterable[torch.Tensor], blocks: int) -> None:
        """Each of `views` is (blocks, …), or (blocks * k, …) if the kernel's blocks are smaller."""
        self._pages = pages
        self.layers = [
            view.unflatten(0, (blocks, -1)) for view in {v.data_ptr(): v for v in views}.values()
        ]
        """(blocks, …) views of the tensor of `pages`, one for each layer that has KV of its own."""
        base = pages.tensor.data_ptr()
        layouts = [
            BlockLayout(
                start=layer.data_ptr() - base,
                stride=layer.stride(0) * layer.element_size(),
                size=_count_spanned(layer[0]) * layer.element_size(),
            )
            for layer in self.layers
        ]
        self._granules = Granules(layouts, blocks, pages.granule)

    @property
    def mechanism(self) -> str:
        """What becomes of released memory: see `pages`."""
        return self._pages.mechanism

    @property
    def block_bytes(self) -> int:
        return count_block_bytes(self.layers)

    def contains(self, layer: torch.Tensor) -> bool:
        """Whether a tensor lies in this range."""
        start = layer.data_ptr() - self._pages.tensor.data_ptr()
        end = start + _count_spanned(layer) * layer.element_size()
        return start >= 0 and end <= self._pages.tensor.nbytes

    def count_claimed(self) -> int:
        """Blocks that have memory."""
        return self._granules.count_claimed()

    def claim(self, block_ids: Collection[int]) -> None:
        """Map memory for blocks that are about to be used.

        Raises MemoryError if there is too little. Nothing has changed then.
        """
        block_ids = self._granules.list_unclaimed(block_ids)
        mapped: list[GranuleSpan] = []
        try:
            for span in self._granules.claim(block_ids):
                self._pages.map(*span)
                mapped.append(span)
        except MemoryError:
            self._granules.release(block_ids)
            for span in mapped:
                self._pages.unmap(*span)
            raise

    def claim_first(self, count: int, least: int) -> None:
        """Claim the first `count` blocks, or fewer, down to `least`, if the device lacks memory.

        That happens if the other engine grew while this one was restarted. Raises MemoryError if
        there is too little for `least` blocks.
        """
        while True:
            try:
                return self.claim(range(count))
            except MemoryError as error:
                if count <= least:
                    raise
                fewer = max(least, count // 2)
                log.warning("no memory for %d KV blocks (%s): trying %d", count, error, fewer)
                count = fewer

    def release(self, block_ids: Collection[int]) -> int:
        """Unmap the memory of blocks whose content nobody needs. Returns the bytes unmapped."""
        return sum(self._pages.unmap(*span) for span in self._granules.release(block_ids))


def count_block_bytes(layers: Iterable[torch.Tensor]) -> int:
    """Bytes of one block in all layers."""
    return sum(layer.numel() // layer.shape[0] * layer.element_size() for layer in layers)


def _count_spanned(block: torch.Tensor) -> int:
    """Elements from the first to the last one, gaps included."""
    return 1 + sum((n - 1) * step for n, step in zip(block.shape, block.stride(), strict=True))
