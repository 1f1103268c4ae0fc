"""A KV tensor on CPU that takes memory only where it is written.

vLLM fills it with zeros, which takes all of its memory at once: with a pool for each engine as
large as both together that is twice too much. Fresh anonymous memory is zero as well.

Checked with vLLM 0.32.0: replaces `vllm.v1.worker.gpu_model_runner.allocate_kv_cache`.
"""

from __future__ import annotations

import mmap
from typing import Any
from unittest.mock import patch

import torch
from vllm.v1.worker import gpu_model_runner, utils

_allocate = utils.allocate_kv_cache
_zeros = torch.zeros


def lazy_zeros(size: Any, *args: Any, dtype: Any = None, device: Any = None, **kw: Any) -> Any:
    """`torch.zeros(bytes, dtype=torch.int8)` without touching the memory; any other as it is."""
    if not isinstance(size, int) or size < 1 or dtype is not torch.int8 or _elsewhere(device):
        return _zeros(size, *args, dtype=dtype, device=device, **kw)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=torch.int8)


def install() -> None:
    """Have this process's model runner allocate so."""

    def allocate(*args: Any, **kwargs: Any) -> Any:
        with patch.object(torch, "zeros", lazy_zeros):
            return _allocate(*args, **kwargs)

    gpu_model_runner.allocate_kv_cache = allocate


def _elsewhere(device: Any) -> bool:
    return device is not None and torch.device(device).type != "cpu"
