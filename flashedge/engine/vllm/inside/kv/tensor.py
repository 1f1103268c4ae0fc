"""Give vLLM a KV tensor whose memory can be mapped and unmapped while the engine runs.

vLLM allocates one tensor of zeros for the KV of all layers, with all of its memory at once. Two
engines on one device would together allocate twice what there is. `allocate` puts the same tensor
into a range of addresses, where blocks have memory only within the quota. Checked with vLLM 0.32.0.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.v1.worker import utils

from flashedge.engine.vllm.inside.keys import KV_FIXED, KV_START, read_config
from flashedge.engine.vllm.inside.kv.blocks import HostPages, KvRange, Pages
from flashedge.engine.vllm.inside.runner_kind import uses_second_runner
from flashedge.errors import EngineError

_allocate_in_vllm = utils.allocate_kv_cache
_MISSED = (
    "this vLLM has a model runner that `allocate_kv_cache` is not replaced for"
    " (flashedge.engine.vllm.inside.patches)"
)
_ranges: list[KvRange] = []  # one for each engine of this process: only tests have several


class _Backing(TorchFunctionMode):
    """Gives our tensor to vLLM's own function in its only call of `torch.zeros`."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self._tensor = tensor

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self._tensor if func is torch.zeros else func(*args, **(kwargs or {}))


def get_kv_range() -> KvRange:
    """Return what `allocate` made last. Raises EngineError if vLLM has not called it."""
    if not _ranges:
        raise EngineError(f"vLLM did not ask FlashEdge for its KV memory; {_MISSED}")
    return _ranges[-1]


def check_layers(layers: Sequence[torch.Tensor]) -> None:
    """Raises EngineError if the KV of a layer lies elsewhere, where no quota limits it: then the
    model runner takes `allocate_kv_cache` from a module in which no patch replaces it."""
    kv = get_kv_range()
    outside = [number for number, layer in enumerate(layers) if not kv.contains(layer)]
    if outside or not layers:
        which = f"of layers {outside}" if layers else "of its model runner"
        raise EngineError(f"the KV {which} is not in FlashEdge's memory; {_MISSED}")


def allocate(
    kv_cache_config: Any, device: Any, layout: Any, kernel_block_sizes: list[int] | None = None
) -> dict[str, torch.Tensor]:
    """Stand in for vLLM's `allocate_kv_cache`. Returns each layer's KV by its name. Raises
    MemoryError if there is no memory for one request."""
    config = get_current_vllm_config()
    if read_config(config).get(KV_FIXED):
        views = _allocate_in_vllm(kv_cache_config, device, layout, kernel_block_sizes)
        storage = next(iter(views.values())).untyped_storage()  # all views lie in it
        buffer = torch.empty(0, dtype=torch.int8, device=storage.device).set_(storage)
        pages = Pages(buffer)
    else:
        (size,) = {tensor.size for tensor in kv_cache_config.kv_cache_tensors}
        device = torch.device(device)
        if device.type != "cpu":
            from flashedge.engine.vllm.inside.kv.cuda_pages import CudaPages

            pages = CudaPages(size, device.index or 0)
        else:
            pages = HostPages(size)
        with _Backing(pages.tensor):
            views = _allocate_in_vllm(kv_cache_config, device, layout, kernel_block_sizes)
    blocks = kv_cache_config.num_blocks
    found = KvRange(pages, views.values(), blocks)
    _claim_start(found, config, blocks)
    _ranges.append(found)
    return views


def _claim_start(kv: KvRange, config: VllmConfig, blocks: int) -> None:
    """Map the memory that the engine starts with: its share, and at least that of one request."""
    share = read_config(config).get(KV_START)
    if share is None:
        kv.claim(range(blocks))
        return
    usable = blocks - 1  # block 0 is vLLM's null block
    block_tokens = config.cache_config.block_size
    least = -(-config.model_config.max_model_len // block_tokens) + 1  # one to spare, as in `quota`
    if uses_second_runner(config):
        # It warms up with all sequences at once: a prompt that is a token longer than a step, up
        # to five steps, each of one token and of those that are drafted, and room for a draft.
        tokens = 6 * (1 + config.num_speculative_tokens) + 1 + config.num_lookahead_tokens
        least = max(least, config.scheduler_config.max_num_seqs * -(-tokens // block_tokens))
    least = min(usable, least)
    kv.claim_first(max(least, int(share * usable)) + 1, least + 1)
