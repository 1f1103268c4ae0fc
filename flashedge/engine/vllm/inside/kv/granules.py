"""Which granules of memory the blocks of a KV tensor lie in, and which of them are needed.

A granule is the unit in which a device maps memory: a page of 4 KiB on CPU, 2 MiB on CUDA. Blocks
are neither as large as granules nor aligned with them. A granule is needed as long as any part of a
used block lies in it.

This module only counts. `pages` maps and unmaps the memory.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class GranuleSpan(NamedTuple):
    """Consecutive granules."""

    first: int
    length: int


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """Where the blocks of one layer lie, in bytes: block i begins at start + i * stride."""

    start: int
    stride: int
    size: int


class Granules:
    """Counts which granules of a tensor are needed. No block is used at first."""

    def __init__(self, layers: Sequence[BlockLayout], blocks: int, granule: int) -> None:
        """`granule` is the size of a granule in bytes."""
        self.granule = granule
        self._layers = tuple(layers)
        self._used = np.zeros(blocks, dtype=bool)
        ends = [layer.start + (blocks - 1) * layer.stride + layer.size for layer in layers]
        self._needed_by = np.zeros(-(-max(ends) // granule), dtype=np.int64)

    def count_claimed(self) -> int:
        """Blocks in use."""
        return int(self._used.sum())

    def list_unclaimed(self, block_ids: Collection[int]) -> list[int]:
        """Those of the blocks that are not in use."""
        ids = np.fromiter(block_ids, dtype=np.int64, count=len(block_ids))
        found: list[int] = ids[~self._used[ids]].tolist()
        return found

    def claim(self, block_ids: Collection[int]) -> list[GranuleSpan]:
        """Mark blocks as used. Returns the granules that were not needed before."""
        before = self._needed_by == 0
        self._needed_by += self._change(block_ids, used=True)
        return _find_spans(before & (self._needed_by > 0))

    def release(self, block_ids: Collection[int]) -> list[GranuleSpan]:
        """Mark blocks as unused. Returns the granules that are no longer needed."""
        before = self._needed_by > 0
        self._needed_by -= self._change(block_ids, used=False)
        return _find_spans(before & (self._needed_by == 0))

    def _change(self, block_ids: Collection[int], *, used: bool) -> NDArray[np.int64]:
        """Mark blocks, and count in each granule the block parts that changed."""
        ids = np.unique(np.fromiter(block_ids, dtype=np.int64, count=len(block_ids)))
        ids = ids[self._used[ids] != used]
        self._used[ids] = used
        ends = np.zeros(len(self._needed_by) + 1, dtype=np.int64)
        for layer in self._layers:
            at = layer.start + ids * layer.stride
            ends += np.bincount(at // self.granule, minlength=len(ends))
            ends -= np.bincount((at + layer.size - 1) // self.granule + 1, minlength=len(ends))
        return np.cumsum(ends[:-1])


def _find_spans(chosen: NDArray[np.bool_]) -> list[GranuleSpan]:
    edges = np.flatnonzero(np.diff(chosen, prepend=False, append=False))
    return [GranuleSpan(int(a), int(b - a)) for a, b in zip(edges[::2], edges[1::2], strict=True)]
