"""Counts the tensors that are alive while a block of code runs, and the most there were at once.

It counts tensors with data, on the meta device and under FakeTensorMode alike, so that the memory
of a model's step can be known without the device it will run on. What a kernel allocates for itself
while it runs is not seen.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the storages that operations create while it is active.

    Those of earlier tensors do not count, nor do views.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, torch.Tensor):
                self._mark(tensor.untyped_storage(), 0)
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self._mark(storage, storage.nbytes())
        return result

    def _mark(self, storage: torch.UntypedStorage, size: int) -> None:
        """Count a storage once, until it is freed."""
        key = storage._cdata
        if key in self._known:
            return
        self._known.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size
