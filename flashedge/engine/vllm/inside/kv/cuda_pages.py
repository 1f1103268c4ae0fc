"""Memory of a card that comes and goes under fixed addresses, by the driver's virtual memory.

A range of addresses is reserved once; memory is created, mapped and unmapped by granules of 2 MiB
or so while the engine runs, and what is unmapped is free for any process. The addresses stay, so
tensors and captured graphs do.

Run as a module it says whether this card can do so, in a process of its own: it maps a granule,
writes and reads it, and looks whether the card has as much free memory afterwards as before. Exit
code 1 and a line where it can't.

Not run on a card yet: tested with a driver made of host memory (tests/unit/host_driver.py).
Ref: CUDA driver API, "Virtual Memory Management".
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch

from flashedge.engine.vllm.inside.kv.pages import DEVICE

TRIED = 8  # granules that the trial maps


class CudaPages:
    """`kv_pages.Pages` on the current device, whose context must be current in the thread."""

    mechanism = DEVICE

    def __init__(self, size: int, device: int, driver: ModuleType | None = None) -> None:
        self._driver = driver or _bindings()
        d = self._driver
        self._memory = d.CUmemAllocationProp()
        self._memory.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._memory.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self._memory.location.id = device
        self._access = d.CUmemAccessDesc()
        self._access.location = self._memory.location
        self._access.flags = d.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        option = d.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self.granule = int(self._call("cuMemGetAllocationGranularity", self._memory, option))
        whole = -(-size // self.granule) * self.granule
        self._address = int(self._call("cuMemAddressReserve", whole, self.granule, 0, 0))
        self._handles: dict[int, Any] = {}  # by granule
        self.take(0, 1)  # torch asks the driver whose memory the first byte is
        self.tensor = _tensor_at(self._address, size, device)
        self.give(0, 1)

    def take(self, first: int, count: int) -> None:
        """One handle a granule, so that any of them can go alone."""
        taken = range(first, first + count)
        try:
            for granule in taken:
                self._map(granule)
            start, size = self._address + first * self.granule, count * self.granule
            self._call("cuMemSetAccess", start, size, [self._access], 1)
            self._call("cuMemsetD8", start, 0, size)
            self._call("cuCtxSynchronize")
        except MemoryError:
            self._unmap([granule for granule in taken if granule in self._handles])
            raise

    def give(self, first: int, count: int) -> int:
        """After what the card is still doing."""
        self._call("cuCtxSynchronize")
        self._unmap(range(first, first + count))
        return count * self.granule

    def _map(self, granule: int) -> None:
        handle = self._call("cuMemCreate", self.granule, self._memory, 0)
        try:
            address = self._address + granule * self.granule
            self._call("cuMemMap", address, self.granule, 0, handle, 0)
        except (MemoryError, RuntimeError):
            self._call("cuMemRelease", handle)
            raise
        self._handles[granule] = handle

    def _unmap(self, granules: Any) -> None:
        for granule in granules:
            self._call("cuMemUnmap", self._address + granule * self.granule, self.granule)
            self._call("cuMemRelease", self._handles.pop(granule))

    def _call(self, name: str, *args: Any) -> Any:
        """The result. Raises MemoryError where the card has too little, else RuntimeError."""
        error, *found = getattr(self._driver, name)(*args)
        if error == self._driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise MemoryError(f"{name}: the card has no memory left")
        if error != self._driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"{name}: {error.name}")
        return found[0] if found else None


def _bindings() -> ModuleType:
    from cuda.bindings import driver  # type: ignore[import-not-found]  # a dependency of torch for CUDA

    found: ModuleType = driver
    return found


class _Range:
    """What torch makes a tensor of without a copy."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": (size,),
            "typestr": "|i1",
            "version": 3,
        }


def _tensor_at(address: int, size: int, device: int) -> torch.Tensor:
    return torch.as_tensor(_Range(address, size), device=f"cuda:{device}")


def trial(device: int = 0) -> None:
    """Raises RuntimeError, MemoryError or what torch does where memory can't come and go."""
    if not torch.cuda.is_available():
        raise RuntimeError("torch sees no CUDA device")
    torch.cuda.set_device(device)
    torch.zeros(1, device="cuda")  # makes the context, and its memory, before anything is counted
    pages = CudaPages(TRIED * (64 << 20), device)
    pages.take(0, 1)
    pages.give(0, 1)
    before, _ = torch.cuda.mem_get_info(device)
    pages.take(1, TRIED)
    held, _ = torch.cuda.mem_get_info(device)
    part = pages.tensor[pages.granule : 2 * pages.granule]
    if part.any():
        raise RuntimeError("fresh memory is not zero")
    part.fill_(1)
    if int(part.sum(dtype=torch.int64)) != pages.granule:
        raise RuntimeError("what was written was not read")
    del part
    pages.give(1, TRIED)
    after, _ = torch.cuda.mem_get_info(device)
    wanted = TRIED * pages.granule
    if before - held < wanted or after - held < wanted:
        raise RuntimeError(f"{before - held} bytes were taken and {after - held} given of {wanted}")


if __name__ == "__main__":
    try:
        trial()
    except Exception as error:  # whatever it is, the answer is no
        sys.exit(f"{type(error).__name__}: {error}")
