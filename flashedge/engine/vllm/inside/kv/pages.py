"""A range of addresses whose memory comes and goes: what a KV tensor lies in.

On CPU fresh anonymous memory, which takes what is written and gives it back by madvise; on CUDA
`cuda_pages`. Where nothing can be given back it is an ordinary tensor (`FixedPages`).
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Protocol

import torch

OS = "os"  # memory that is given goes back to the operating system
DEVICE = "device"  # ... to the device
KEPT = "kept"  # it stays allocated: only the quota moves

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Pages(Protocol):
    """tensor: (bytes,) int8, all of the range, none of which has memory at first; granule: bytes
    that come and go at once; mechanism: OS, DEVICE or KEPT."""

    mechanism: str
    granule: int
    tensor: torch.Tensor

    def take(self, first: int, count: int) -> None:
        """So many granules get memory, all zero. Raises MemoryError when there is too little: then
        none of them got any."""

    def give(self, first: int, count: int) -> int:
        """Their memory goes back: the bytes. Nobody may read or write there until it is taken
        again."""
        ...


class HostPages:
    """guarded: what was not taken can't be touched, as on CUDA, where a kernel that does so ends
    the process (for tests)."""

    mechanism = OS

    def __init__(self, size: int, granule: int = mmap.PAGESIZE, *, guarded: bool = False) -> None:
        self.granule = granule
        self._guarded = guarded
        whole = -(-size // granule) * granule
        self._memory = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        everything = torch.frombuffer(self._memory, dtype=torch.int8)
        self._address = everything.data_ptr()
        self.tensor = everything[:size]
        if guarded:
            self._protect(0, whole, 0)

    def take(self, first: int, count: int) -> None:
        if self._guarded:
            self._protect(
                first * self.granule, count * self.granule, mmap.PROT_READ | mmap.PROT_WRITE
            )

    def give(self, first: int, count: int) -> int:
        """Pages come back all zero: never NaN, which attention would spread from masked places."""
        start, size = first * self.granule, count * self.granule
        if _libc.madvise(self._address + start, size, mmap.MADV_DONTNEED) != 0:
            raise OSError(ctypes.get_errno(), "madvise refused to take KV memory back")
        if self._guarded:
            self._protect(start, size, 0)
        return size

    def _protect(self, start: int, size: int, allowed: int) -> None:
        if _libc.mprotect(self._address + start, size, allowed) != 0:
            raise OSError(ctypes.get_errno(), "mprotect refused")


class FixedPages:
    """The tensor that vLLM itself allocated: its memory stays, only the quota moves.

    `tensor` is the whole buffer as bytes, (bytes,) int8.
    """

    mechanism = KEPT

    def __init__(self, tensor: torch.Tensor) -> None:
        self.granule = tensor.numel()
        self.tensor = tensor

    def take(self, first: int, count: int) -> None: ...

    def give(self, first: int, count: int) -> int:
        return 0
