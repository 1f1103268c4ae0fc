"""A worker whose KV is not in FlashEdge's memory is refused before its first request."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
)
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.worker.gpu import attn_utils as second_runner
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from flashedge.engine.vllm.inside.kv import tensor as kv_tensor
from flashedge.engine.vllm.inside.kv.blocks import HostPages, KvRange
from flashedge.engine.vllm.inside.kv.worker import KvMemory
from flashedge.errors import EngineError

LAYERS, BLOCKS, BLOCK_BYTES = 2, 4, 4000  # with some room behind them in the last page


@pytest.fixture
def layers(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    pages = HostPages(LAYERS * BLOCKS * BLOCK_BYTES)
    views = list(pages.tensor.view(LAYERS, BLOCKS, BLOCK_BYTES))
    monkeypatch.setattr(kv_tensor, "_ranges", [KvRange(pages, views, BLOCKS)])
    return views


def describe(kv_caches: list[torch.Tensor]) -> Any:
    worker = KvMemory()
    worker.model_runner = runner = GPUModelRunner.__new__(GPUModelRunner)
    runner.kv_caches, runner.vllm_config = kv_caches, SimpleNamespace(additional_config={})
    return worker.describe_kv_memory()


def test_kv_elsewhere_is_named(layers: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    assert describe(layers)["block_bytes"] == LAYERS * BLOCK_BYTES
    with pytest.raises(EngineError, match=r"of layers \[0\] is not in FlashEdge's memory"):
        describe([torch.zeros_like(layers[0]), layers[1]])
    longer = layers[1].as_strided((BLOCKS * BLOCK_BYTES + 100,), (1,))
    with pytest.raises(EngineError, match=r"of layers \[1\]"):
        describe([layers[0], longer])
    with pytest.raises(EngineError, match="the KV of its model runner is not"):
        describe([])
    monkeypatch.setattr(kv_tensor, "_ranges", [])
    with pytest.raises(EngineError, match="vLLM did not ask FlashEdge for its KV memory"):
        describe([torch.zeros(4)])


SPEC = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=32, dtype=torch.float32)
NAMES = ["model.layers.0.attn", "model.layers.1.attn"]
PAGE = SPEC.page_size_bytes
STRIDES = {"layer_stride": BLOCKS * PAGE, "block_stride": PAGE}
TENSOR = KVCacheTensor(size=len(NAMES) * BLOCKS * PAGE, layers=NAMES, **STRIDES)
KV_CONFIG = KVCacheConfig(BLOCKS, [TENSOR], [KVCacheGroupSpec(NAMES, SPEC)])


def test_the_second_model_runner_has_its_kv_in_our_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test on real engines shows it of the first."""
    layers = dict.fromkeys(NAMES, SimpleNamespace(bind_kv_cache=lambda kv_cache: None))
    layout = {"get_resolved_kv_cache_layout": lambda: KVCacheLayout.LBHNC}
    config = SimpleNamespace(  # what of vLLM's config the allocation reads
        additional_config={},
        attention_config=SimpleNamespace(hisparse_config=None),
        cache_config=SimpleNamespace(block_size=SPEC.block_size, **layout),
        compilation_config=SimpleNamespace(static_forward_context=layers),
        model_config=SimpleNamespace(hf_config=SimpleNamespace(model_type="qwen2")),
    )
    monkeypatch.setattr(kv_tensor, "get_current_vllm_config", lambda: config)
    monkeypatch.setattr(kv_tensor, "_ranges", [])
    monkeypatch.setattr(second_runner, "get_shared_kv_cache_layers", lambda config: {})
    device, sizes = torch.device("cpu"), [SPEC.block_size]
    kv_caches = second_runner.init_kv_cache(layers, KV_CONFIG, device, sizes, config)
    block_bytes = describe(list(kv_caches.values()))["block_bytes"]
    assert block_bytes == len(NAMES) * PAGE
