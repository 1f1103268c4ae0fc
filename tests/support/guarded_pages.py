"""KV memory on a CPU that can't be touched where it is not mapped, as on a card.

A step that touches such memory ends the engine's process. An engine with `KV_MEMORY` as its
`worker_extension_cls` has memory of this kind.
"""

import ctypes
import mmap
import multiprocessing
from functools import partial
from typing import Any

from flashedge.engine.vllm.inside.keys import STAGES_PIPE
from flashedge.engine.vllm.inside.kv import tensor
from flashedge.engine.vllm.inside.kv.blocks import DEVICE, HostPages
from flashedge.engine.vllm.inside.kv.worker import KvMemory

KV_MEMORY = f"{__name__}.GuardedKvMemory"
GRANULE = 1 << 19
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class GuardedPages(HostPages):
    mechanism = DEVICE

    def __init__(self, size: int, granule: int) -> None:
        super().__init__(size, granule)
        self._allow(0, -(-size // granule), 0)

    def map(self, first: int, count: int) -> None:
        self._allow(first, count, mmap.PROT_READ | mmap.PROT_WRITE)

    def unmap(self, first: int, count: int) -> int:
        size = super().unmap(first, count)
        self._allow(first, count, 0)
        return size

    def _allow(self, first: int, count: int, access: int) -> None:
        start, size = self._address + first * self.granule, count * self.granule
        if _libc.mprotect(start, size, access) != 0:
            raise OSError(ctypes.get_errno(), "mprotect failed")


class GuardedKvMemory(KvMemory):
    """vLLM imports this module in the worker's process before it allocates KV."""

    def describe_kv_memory(self) -> dict[str, Any]:
        assert isinstance(tensor.get_kv_range()._pages, GuardedPages)
        return super().describe_kv_memory()


if hasattr(multiprocessing.current_process(), STAGES_PIPE):  # an engine's process
    tensor.HostPages = partial(GuardedPages, granule=GRANULE)  # type: ignore[assignment,misc]
