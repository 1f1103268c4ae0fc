"""Which pieces of memory the blocks of a KV tensor lie in, and which of those nobody needs.

A device gives and takes memory by granules (4 KiB pages on CPU, 2 MiB on CUDA), which blocks are
neither aligned with nor as large as. A granule is needed as long as a block in use lies in it, be
it in part. Pure: no memory is touched.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Run(NamedTuple):
    """Granules that follow each other."""

    first: int
    length: int


@dataclass(frozen=True, slots=True)
class Pieces:
    """Where the blocks lie in one layer, in bytes: block i from start + i * stride, `size` long."""

    start: int
    stride: int
    size: int


class Granules:
    """Of a tensor of so many blocks; none is in use at first. granule: bytes of one."""

    def __init__(self, layers: Sequence[Pieces], blocks: int, granule: int) -> None:
        self.granule = granule
        self._layers = tuple(layers)
        self._used = np.zeros(blocks, dtype=bool)
        ends = [layer.start + (blocks - 1) * layer.stride + layer.size for layer in layers]
        self._needed_by = np.zeros(-(-max(ends) // granule), dtype=np.int64)

    def claim(self, block_ids: Collection[int]) -> list[Run]:
        """They are in use from now on. Granules that were not needed before."""
        before = self._needed_by == 0
        self._needed_by += self._change(block_ids, used=True)
        return _runs(before & (self._needed_by > 0))

    def release(self, block_ids: Collection[int]) -> list[Run]:
        """They are no longer in use. Granules that are not needed any more."""
        before = self._needed_by > 0
        self._needed_by -= self._change(block_ids, used=False)
        return _runs(before & (self._needed_by == 0))

    def _change(self, block_ids: Collection[int], *, used: bool) -> NDArray[np.int64]:
        """How many pieces more or fewer lie in each granule, by the blocks that change."""
        ids = np.unique(np.fromiter(block_ids, dtype=np.int64, count=len(block_ids)))
        ids = ids[self._used[ids] != used]
        self._used[ids] = used
        ends = np.zeros(len(self._needed_by) + 1, dtype=np.int64)
        for layer in self._layers:
            at = layer.start + ids * layer.stride
            ends += np.bincount(at // self.granule, minlength=len(ends))
            ends -= np.bincount((at + layer.size - 1) // self.granule + 1, minlength=len(ends))
        return np.cumsum(ends[:-1])


def _runs(chosen: NDArray[np.bool_]) -> list[Run]:
    edges = np.flatnonzero(np.diff(chosen, prepend=False, append=False))
    return [Run(int(a), int(b - a)) for a, b in zip(edges[::2], edges[1::2], strict=True)]
