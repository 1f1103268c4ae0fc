"""The KV tensor of an engine process, block by block, and the memory behind it.

`Pages` is a range of addresses. `HostPages` and, on CUDA, `cuda_pages.CudaPages` map and unmap the
memory behind it in *granules*: pages of 4 KiB on most CPUs, some 2 MiB on CUDA. Blocks are neither
as large as granules nor aligned with them. A granule is needed as long as any part of a used block
lies in it.
"""

import ctypes
import logging
import mmap
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

log = logging.getLogger(__name__)

OS = "os"  # unmapped memory goes back to the operating system
DEVICE = "device"  # unmapped memory goes back to the device
KEPT = "kept"  # no memory is unmapped: a quota limits only which blocks are used

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Pages:
    """A range of addresses whose memory stays as vLLM allocated it. Derived classes unmap it."""

    mechanism = KEPT
    """What becomes of unmapped memory: OS, DEVICE or KEPT."""

    def __init__(self, tensor: torch.Tensor, granule: int | None = None) -> None:
        """tensor: (bytes,) int8, the range. granule: its size in bytes, by default the range's."""
        self.tensor, self.granule = tensor, granule or tensor.numel()

    def map(self, first: int, count: int) -> None:
        """Give these granules memory, all zero. Raises MemoryError if there is too little for all
        of them, and RuntimeError if the device fails. None of them is mapped then."""

    def unmap(self, first: int, count: int) -> int:
        """Give back these granules' memory, which must not be used until it is mapped again.
        Returns its size in bytes."""
        return 0


class HostPages(Pages):
    """Anonymous memory, which the system commits on the first write and takes back by madvise."""

    mechanism = OS

    def __init__(self, size: int, granule: int = mmap.PAGESIZE) -> None:
        whole = -(-size // granule) * granule
        self._memory = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        everything = torch.frombuffer(self._memory, dtype=torch.int8)
        self._address = everything.data_ptr()
        super().__init__(everything[:size], granule)

    def unmap(self, first: int, count: int) -> int:
        """See `Pages`. The next use finds zeros: a NaN left there would spread in attention."""
        start, size = first * self.granule, count * self.granule
        if _libc.madvise(self._address + start, size, mmap.MADV_DONTNEED) != 0:
            raise OSError(ctypes.get_errno(), "madvise could not return KV memory to the system")
        return size


GranuleSpan = tuple[int, int]
"""(first granule, how many)."""


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """Where the blocks of one layer lie, in bytes: block i begins at start + i * stride."""

    start: int
    stride: int
    size: int


class Granules:
    """Counts how often each granule of a tensor is needed. No block is used at first."""

    def __init__(self, layers: Sequence[BlockLayout], blocks: int, granule: int) -> None:
        self._granule, self._layers = granule, tuple(layers)
        self.used = np.zeros(blocks, dtype=bool)
        ends = [layer.start + (blocks - 1) * layer.stride + layer.size for layer in layers]
        self._needed_by = np.zeros(-(-max(ends) // granule), dtype=np.int64)

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

    def count_needed(self) -> int:
        return int(np.count_nonzero(self._needed_by))

    def _change(self, block_ids: Collection[int], *, used: bool) -> NDArray[np.int64]:
        """Mark blocks. Returns how many of those that changed need each granule: (granules,)."""
        ids = np.unique(np.fromiter(block_ids, dtype=np.int64, count=len(block_ids)))
        ids = ids[self.used[ids] != used]
        self.used[ids] = used
        edges = np.zeros(len(self._needed_by) + 1, dtype=np.int64)
        for layer in self._layers:
            at = layer.start + ids * layer.stride
            edges += np.bincount(at // self._granule, minlength=len(edges))
            edges -= np.bincount((at + layer.size - 1) // self._granule + 1, minlength=len(edges))
        return np.cumsum(edges[:-1])


def _find_spans(chosen: NDArray[np.bool_]) -> list[GranuleSpan]:
    edges = np.flatnonzero(np.diff(chosen, prepend=False, append=False))
    return [(int(a), int(b - a)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


class KvRange:
    """The KV of all layers in one tensor, whose blocks can be given memory and lose it."""

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
        self.mechanism = pages.mechanism
        self.rounding_bytes = 0 if self.mechanism == KEPT else len(self.layers) * pages.granule
        """The most that granules at the edges of blocks add to the memory of a range of blocks."""
        self.block_bytes = count_block_bytes(self.layers)

    def contains(self, layer: torch.Tensor) -> bool:
        start = layer.data_ptr() - self._pages.tensor.data_ptr()
        end = start + _count_spanned(layer) * layer.element_size()
        return start >= 0 and end <= self._pages.tensor.nbytes

    def count_claimed(self) -> int:
        return int(self._granules.used.sum())

    @property
    def mapped_bytes(self) -> int:
        """Bytes that have memory now. On a CPU some of it may not have been written yet."""
        if self.mechanism == KEPT:
            return self._pages.tensor.nbytes
        return self._granules.count_needed() * self._pages.granule

    def claim(self, block_ids: Collection[int]) -> int:
        """Map the memory of blocks. Returns the bytes that were not mapped before. Raises what
        `Pages.map` raises. Nothing has changed then."""
        before, used = self.mapped_bytes, self._granules.used
        block_ids = [block for block in block_ids if not used[block]]
        mapped: list[GranuleSpan] = []
        try:
            for span in self._granules.claim(block_ids):
                self._pages.map(*span)
                mapped.append(span)
        except (MemoryError, RuntimeError):
            self._granules.release(block_ids)
            for span in mapped:
                self._pages.unmap(*span)
            raise
        return self.mapped_bytes - before

    def claim_first(self, count: int, least: int) -> None:
        """Claim the first `count` blocks. If memory is short, since the other engine grew while
        this one was restarted, claim fewer. Raises MemoryError if it is too short for `least`."""
        while True:
            try:
                self.claim(range(count))
                return
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
    """Count the bytes of one block in all layers. layers: (blocks, …) each."""
    return sum(layer.numel() // layer.shape[0] * layer.element_size() for layer in layers)


def _count_spanned(block: torch.Tensor) -> int:
    """Count the elements from the first to the last one, gaps included."""
    return 1 + sum((n - 1) * step for n, step in zip(block.shape, block.stride(), strict=True))
