"""Has vLLM put its KV tensor where memory comes and goes.

vLLM takes one tensor of zeros for all layers, which takes all of its memory at once: with a pool
for each engine as large as both together that is twice too much. Here it gets a range of addresses
of which some blocks have memory.

Checked with vLLM 0.32.0: replaces `vllm.v1.worker.gpu_model_runner.allocate_kv_cache`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import torch
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.v1.worker import gpu_model_runner, utils

from flashedge.engine.vllm.keys import ARGS_KEY, KV_FIXED, KV_GUARDED, KV_KEY, KV_START
from flashedge.engine.vllm.kv_pages import FixedPages, HostPages, Pages
from flashedge.engine.vllm.kv_range import KvRange

_allocate = utils.allocate_kv_cache
_ranges: list[KvRange] = []  # of this process: one


def install() -> None:
    """For this process."""
    gpu_model_runner.allocate_kv_cache = allocate


def kv_range() -> KvRange:
    """Of this process's engine, once it has a KV tensor."""
    return _ranges[-1]


def allocate(kv_cache_config: Any, device: Any, *args: Any, **kwargs: Any) -> Any:
    """As vLLM's own."""
    config = get_current_vllm_config()
    made: list[Pages] = []

    def zeros(size: int, *, dtype: Any, device: Any) -> torch.Tensor:
        made.append(_pages(size, torch.device(device), settings_of(config)))
        return made[0].tensor

    with patch.object(torch, "zeros", zeros):
        tensors = _allocate(kv_cache_config, device, *args, **kwargs)
    (pages,) = made
    blocks = kv_cache_config.num_blocks
    found = KvRange(pages, tensors.values(), blocks)
    found.claim(range(start_blocks(config, blocks - 1) + 1))  # and vLLM's null block, the first
    _ranges.append(found)
    return tensors


def settings_of(config: VllmConfig) -> Mapping[str, Any]:
    """What `EngineOptions` says of the KV memory."""
    found: Mapping[str, Any] = config.additional_config.get(ARGS_KEY, {}).get(KV_KEY, {})
    return found


def start_blocks(config: VllmConfig, usable: int) -> int:
    """How many of the blocks, from the first, have memory at the start."""
    share = settings_of(config).get(KV_START)
    if share is None:
        return usable
    longest = -(-config.model_config.max_model_len // config.cache_config.block_size)
    return min(usable, max(longest + 1, int(share * usable)))


def _pages(size: int, device: torch.device, settings: Mapping[str, Any]) -> Pages:
    if settings.get(KV_FIXED):
        return FixedPages(size, device)
    if device.type == "cpu":
        guard = settings.get(KV_GUARDED)
        return HostPages(size, guard, guarded=True) if guard else HostPages(size)
    from flashedge.engine.vllm.cuda_pages import CudaPages

    return CudaPages(size, device.index or 0)
