"""The rows of a batch that are sampled, and how what they need reaches the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from flashedge.search.tree import mix64

FIELDS = 5
"""Numbers that describe a row to the kernel, see `pack_rows`."""


@dataclass(slots=True)
class SampledRow:
    """One request in the batch."""

    seed: int
    temperature: float
    top_k: int
    top_p: float
    prompt_len: int
    output: Sequence[int]
    """The generated ids. Of a request in the batch vLLM appends to this list."""
    min_p: float = 0.0

    @property
    def position(self) -> int:
        return self.prompt_len + len(self.output)

    @property
    def key(self) -> int:
        """Key of the noise of the next token, of 63 bits."""
        return mix64(self.seed, self.position)


IndexedRow = tuple[int, SampledRow]
"""A row and its index in the batch."""


def pack_rows(sampled: Sequence[IndexedRow], device: torch.device) -> torch.Tensor:
    """Describe rows to the kernel by one tensor, so that there is one copy to the device.

    Returns (rows, FIELDS) int64: the index in the batch, the key, top-k, and the float64 bits of
    temperature and top-p.
    """
    packed = np.empty((len(sampled), FIELDS), dtype=np.int64)
    packed[:, :3] = [(index, row.key, row.top_k) for index, row in sampled]
    packed[:, 3:].view(np.float64)[:] = [(row.temperature, row.top_p) for _, row in sampled]
    return _copy_without_waiting(torch.from_numpy(packed), device)


def copy_to(
    values: Sequence[int] | Sequence[float], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Returns (len(values),) on the device. The host does not wait for the device."""
    return _copy_without_waiting(torch.tensor(values, dtype=dtype), device)


def _copy_without_waiting(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """From pageable memory CUDA would copy only after all the work that is queued."""
    if device.type == "cuda" and torch.cuda.is_available():  # without a card there are only fakes
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
