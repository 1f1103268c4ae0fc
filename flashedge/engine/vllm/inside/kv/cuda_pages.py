"""CUDA memory that the driver maps and unmaps at fixed addresses.

Memory is mapped and unmapped in granules of about 2 MiB while the engine runs. Unmapped memory is
free for any process. The addresses never change, so tensors and captured graphs stay valid. Run as
a program, this module tries it on the card.

Its tests use a driver made of host memory (tests/support/host_driver.py).
Ref: CUDA driver API, "Virtual Memory Management".
"""

import importlib
import sys
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import torch

from flashedge.engine.vllm.inside.kv.blocks import DEVICE, Pages
from flashedge.engine.vllm.inside.kv.save_area import SaveArea

TRIAL_GRANULES = 8
"""Chosen by hand: one would not try several mappings, and hundreds may not fit a card in use."""
TRIAL_BYTES = 512 << 20
"""The range of addresses that the trial reserves, larger than its granules."""


class CudaPages(Pages):
    """Memory of a device whose context is current in the calling thread."""

    mechanism = DEVICE

    def __init__(self, size: int, device: int, driver: Any = None) -> None:
        """size: bytes. device: its CUDA number. driver: cuda.bindings.driver, or a test's."""
        driver = driver or importlib.import_module("cuda.bindings.driver")  # comes with torch
        self._driver = driver
        self._memory = driver.CUmemAllocationProp()
        self._memory.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._memory.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self._memory.location.id = device
        self._access = driver.CUmemAccessDesc()
        self._access.location = self._memory.location
        self._access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        option = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self.granule = int(self._call("cuMemGetAllocationGranularity", self._memory, option))
        whole = -(-size // self.granule) * self.granule
        self._address = int(self._call("cuMemAddressReserve", whole, self.granule, 0, 0))
        self._handles: dict[int, Any] = {}  # by granule
        self.map(0, 1)  # torch asks the driver which device the first byte is on
        self.tensor = _make_tensor(self._address, size, device)
        self.unmap(0, 1)

    def map(self, first: int, count: int) -> None:
        """See `Pages`. Each granule has a handle of its own, so that it can be unmapped alone."""
        granules = range(first, first + count)
        try:
            for granule in granules:
                handle = self._call("cuMemCreate", self.granule, self._memory, 0)
                try:
                    address = self._address + granule * self.granule
                    self._call("cuMemMap", address, self.granule, 0, handle, 0)
                except (MemoryError, RuntimeError):
                    self._call("cuMemRelease", handle)
                    raise
                self._handles[granule] = handle
            start, size = self._address + first * self.granule, count * self.granule
            self._call("cuMemSetAccess", start, size, [self._access], 1)
            self._call("cuMemsetD8", start, 0, size)
            # Waits for the zeros alone: KV may be on its way into other granules meanwhile.
            self._call("cuStreamSynchronize", 0)
        except (MemoryError, RuntimeError):
            self._unmap_all([granule for granule in granules if granule in self._handles])
            raise

    def unmap(self, first: int, count: int) -> int:
        """See `Pages`. Waits until the card has done all queued work."""
        self._call("cuCtxSynchronize")
        self._unmap_all(range(first, first + count))
        return count * self.granule

    def _unmap_all(self, granules: Iterable[int]) -> None:
        for granule in granules:
            self._call("cuMemUnmap", self._address + granule * self.granule, self.granule)
            self._call("cuMemRelease", self._handles.pop(granule))

    def _call(self, name: str, *args: Any) -> Any:
        """Call the driver. Raises MemoryError for a lack of memory, else RuntimeError."""
        error, *found = getattr(self._driver, name)(*args)
        if error == self._driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise MemoryError(f"{name}: the card has no memory left")
        if error != self._driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"{name}: {error.name}")
        return found[0] if found else None


def _make_tensor(address: int, size: int, device: int) -> torch.Tensor:
    interface = {"data": (address, False), "shape": (size,), "typestr": "|i1", "version": 3}
    memory = SimpleNamespace(__cuda_array_interface__=interface)
    return torch.as_tensor(memory, device=f"cuda:{device}")


def try_card() -> None:
    """Move KV on the first card. Raises an error if that does not work."""
    if not torch.cuda.is_available():
        raise RuntimeError("torch sees no CUDA device")
    torch.zeros(1, device="cuda")  # makes the context, which takes memory
    try_pages(CudaPages(TRIAL_BYTES, 0), torch.cuda)


def try_pages(pages: CudaPages, cuda: Any) -> None:
    """Map memory, write and save it, unmap and map it, and load what was saved. cuda: torch.cuda.
    Raises an error if the card does not have the memory meanwhile, or anything else is wrong."""
    first, end = pages.granule, (1 + TRIAL_GRANULES) * pages.granule
    layer = pages.tensor[first:end].view(TRIAL_GRANULES, -1)  # a block is a granule
    numbers = torch.arange(1, TRIAL_GRANULES + 1, dtype=torch.int8, device=layer.device).view(-1, 1)
    area, blocks = SaveArea(cuda), range(TRIAL_GRANULES)
    moved: list[int] = []

    def measure(move: Callable[[int, int], object]) -> None:
        before = cuda.mem_get_info()[0]  # torch takes memory between two moves
        move(1, TRIAL_GRANULES)
        moved.append(abs(cuda.mem_get_info()[0] - before))

    for is_second in (False, True):
        measure(pages.map)
        if layer.any():
            raise RuntimeError("fresh memory is not zero")
        if is_second:
            area.load([layer], blocks, TRIAL_GRANULES)
            if not bool((layer == numbers).all()):
                raise RuntimeError("what was loaded is not what was saved")
        else:
            layer.copy_(numbers.expand_as(layer))
            area.save([layer], blocks)
        measure(pages.unmap)
    if min(moved) < end - first:
        raise RuntimeError(f"of {end - first} bytes {moved} were mapped and unmapped")


if __name__ == "__main__":
    try:
        try_card()
    except Exception as error:  # whatever it is, the card can't map memory
        sys.exit(f"{type(error).__name__}: {error}")
