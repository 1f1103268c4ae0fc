"""A range of addresses whose memory can be mapped and unmapped. A KV tensor lies in it.

On CPU it is anonymous memory, which the system commits on the first write and takes back by
madvise. On CUDA see `cuda_pages`. Where memory can't be unmapped it is an ordinary tensor
(`FixedPages`).
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Protocol

import torch

OS = "os"  # unmapped memory goes back to the operating system
DEVICE = "device"  # it goes back to the device
KEPT = "kept"  # it stays allocated: only the quota changes

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Pages(Protocol):
    """A range of addresses. None of it has memory at first."""

    mechanism: str
    """What becomes of unmapped memory: OS, DEVICE or KEPT."""
    granule: int
    """Bytes of a granule, the unit of mapping."""
    tensor: torch.Tensor
    """(bytes,) int8, the whole range."""

    def map(self, first: int, count: int) -> None:
        """Give memory to `count` granules, all zero.

        Raises MemoryError if there is too little. None of them has memory then.
        """

    def unmap(self, first: int, count: int) -> int:
        """Take the memory of `count` granules. Returns the bytes.

        Nobody may read or write there until they are mapped again.
        """
        ...


class HostPages:
    """Host memory, for engines on a CPU."""

    mechanism = OS

    def __init__(self, size: int, granule: int = mmap.PAGESIZE, *, guarded: bool = False) -> None:
        """With `guarded`, for tests, whoever touches memory that is not mapped is killed.

        A kernel on CUDA that does so ends the process as well.
        """
        self.granule = granule
        self._guarded = guarded
        whole = -(-size // granule) * granule
        self._memory = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        everything = torch.frombuffer(self._memory, dtype=torch.int8)
        self._address = everything.data_ptr()
        self.tensor = everything[:size]
        if guarded:
            self._protect(0, whole, 0)

    def map(self, first: int, count: int) -> None:
        if self._guarded:
            self._protect(
                first * self.granule, count * self.granule, mmap.PROT_READ | mmap.PROT_WRITE
            )

    def unmap(self, first: int, count: int) -> int:
        """Pages return all zero. NaN would spread in attention, from masked positions too."""
        start, size = first * self.granule, count * self.granule
        if _libc.madvise(self._address + start, size, mmap.MADV_DONTNEED) != 0:
            raise OSError(ctypes.get_errno(), "madvise could not return KV memory to the system")
        if self._guarded:
            self._protect(start, size, 0)
        return size

    def _protect(self, start: int, size: int, allowed: int) -> None:
        if _libc.mprotect(self._address + start, size, allowed) != 0:
            raise OSError(ctypes.get_errno(), "mprotect failed")


class FixedPages:
    """The tensor that vLLM itself allocated. Its memory stays; only the quota changes."""

    mechanism = KEPT

    def __init__(self, tensor: torch.Tensor) -> None:
        self.granule = tensor.numel()
        self.tensor = tensor

    def map(self, first: int, count: int) -> None: ...

    def unmap(self, first: int, count: int) -> int:
        return 0
