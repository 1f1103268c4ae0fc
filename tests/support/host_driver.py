"""A CUDA driver made of host memory, with the calls that `cuda_pages` needs.

Memory that is not mapped, or whose access is not set, can't be touched. Names and return values are
those of `cuda.bindings.driver`.
"""

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import torch

GRANULE = 16 * mmap.PAGESIZE
FIXED = 0x10

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def make_tensor(address: int, size: int, device: int) -> torch.Tensor:
    return torch.frombuffer((ctypes.c_int8 * size).from_address(address), dtype=torch.int8)


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2


OK, WRONG, NO_MEMORY = ((result,) for result in CUresult)


class HostDriver:
    CUresult = CUresult
    CUmemAllocationType = SimpleNamespace(CU_MEM_ALLOCATION_TYPE_PINNED=1)
    CUmemLocationType = SimpleNamespace(CU_MEM_LOCATION_TYPE_DEVICE=1)
    CUmemAccess_flags = SimpleNamespace(CU_MEM_ACCESS_FLAGS_PROT_READWRITE=3)
    CUmemAllocationGranularity_flags = SimpleNamespace(CU_MEM_ALLOC_GRANULARITY_MINIMUM=0)

    CUmemAllocationProp = staticmethod(lambda: SimpleNamespace(location=SimpleNamespace(id=-1)))
    CUmemAccessDesc = SimpleNamespace
    cuCtxSynchronize = staticmethod(lambda: OK)
    cuStreamSynchronize = staticmethod(lambda stream: OK)

    def __init__(self, free: int) -> None:
        self.free = free
        """Granules that the card has left."""
        self._failing: str | None = None
        self._successes = 0
        self.handles: set[int] = set()
        self.mapped: dict[int, int] = {}

    def fail(self, call: str | None, after: int = 0) -> None:
        """Let this call fail from now on, once it has succeeded `after` times. None: none fails."""
        self._failing, self._successes = call, after

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("cu") and name == self._failing:
            if not self._successes:
                return lambda *args: WRONG
            self._successes -= 1
        return super().__getattribute__(name)

    def cuMemGetAllocationGranularity(self, prop: Any, option: int) -> Any:
        return (*OK, GRANULE) if prop.type == 1 and prop.location.id == 0 else WRONG

    def cuMemAddressReserve(self, size: int, alignment: int, addr: int, flags: int) -> Any:
        if size % GRANULE or addr or flags:
            return WRONG
        return (*OK, _map_at(0, size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1))

    def cuMemCreate(self, size: int, prop: Any, flags: int) -> Any:
        if size != GRANULE or flags:
            return WRONG
        if not self.free:
            return NO_MEMORY
        self.free -= 1
        handle = os.memfd_create("granule")
        os.truncate(handle, size)
        os.pwrite(handle, b"\xff" * size, 0)  # a card does not clear fresh memory
        self.handles.add(handle)
        return (*OK, handle)

    def cuMemMap(self, ptr: int, size: int, offset: int, handle: int, flags: int) -> Any:
        if ptr in self.mapped or handle not in self.handles or size != GRANULE or offset or flags:
            return WRONG
        _map_at(ptr, size, 0, mmap.MAP_SHARED | FIXED, handle)
        self.mapped[ptr] = handle
        return OK

    def cuMemSetAccess(self, ptr: int, size: int, desc: list[Any], count: int) -> Any:
        whole = all(at in self.mapped for at in range(ptr, ptr + size, GRANULE))
        if not whole or len(desc) != count or desc[0].flags != 3 or desc[0].location.id != 0:
            return WRONG
        _libc.mprotect(ptr, size, mmap.PROT_READ | mmap.PROT_WRITE)
        return OK

    def cuMemsetD8(self, ptr: int, value: int, count: int) -> Any:
        ctypes.memset(ptr, value, count)
        return OK

    def cuMemUnmap(self, ptr: int, size: int) -> Any:
        if size != GRANULE or self.mapped.pop(ptr, None) is None:
            return WRONG
        _map_at(ptr, size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | FIXED, -1)
        return OK

    def cuMemRelease(self, handle: int) -> Any:
        if handle not in self.handles:
            return WRONG
        self.handles.remove(handle)
        os.close(handle)
        self.free += 1
        return OK


class FakeCuda:
    """Streams that keep the order of what is queued on them. The memory is the host's."""

    def __init__(self, driver: HostDriver | None = None) -> None:
        self.calls: list[str] = []
        self.now = "steps"
        self._driver = driver
        self._taken = 0
        """What torch's allocator holds: it takes some for the copies of each stream."""

    def mem_get_info(self) -> tuple[int, int]:
        assert self._driver is not None
        return self._driver.free * GRANULE - self._taken, 0

    def Stream(self) -> Any:
        return self._make("copies")

    def current_stream(self) -> Any:
        self._taken += GRANULE // 2
        return self._make(self.now)

    def _make(self, name: str) -> Any:
        return SimpleNamespace(
            name=name,
            wait_stream=lambda other: self.calls.append(f"{name} wait for {other.name}"),
            synchronize=lambda: self.calls.append(f"the host waits for {name}"),
        )

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self.calls.append(f"{stream.name} are queued")
        before, self.now = self.now, stream.name
        yield
        self.now = before


def _map_at(address: int, size: int, allowed: int, flags: int, file: int) -> int:
    found = _libc.mmap(address or None, size, allowed, flags, file, 0)
    assert found not in (None, ctypes.c_void_p(-1).value), os.strerror(ctypes.get_errno())
    return int(found)
