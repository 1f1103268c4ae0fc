"""A worker whose KV is not in FlashEdge's memory is refused before its first request."""

from __future__ import annotations

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
    worker.model_runner = GPUModelRunner.__new__(GPUModelRunner)
    worker.model_runner.kv_caches = kv_caches
    worker.model_runner.vllm_config = SimpleNamespace(additional_config={})
    return worker.describe_kv_memory()


def test_kv_that_is_not_in_our_memory_is_named(layers: list[torch.Tensor]) -> None:
    assert describe(layers)["block_bytes"] == LAYERS * BLOCK_BYTES
    with pytest.raises(EngineError, match=r"of layers \[0\] is not in FlashEdge's memory"):
        describe([torch.zeros_like(layers[0]), layers[1]])
    longer = layers[1].as_strided((BLOCKS * BLOCK_BYTES + 100,), (1,))
    with pytest.raises(EngineError, match=r"of layers \[1\]"):
        describe([layers[0], longer])
    with pytest.raises(EngineError, match="the KV of its model runner is not"):
        describe([])


def test_an_engine_that_never_asked_for_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_tensor, "_ranges", [])
    with pytest.raises(EngineError, match="vLLM did not ask FlashEdge for its KV memory"):
        describe([torch.zeros(4)])


# ---------------------------------------------------------------- vLLM's own model runners

SPEC = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=32, dtype=torch.float32)
NAMES = ["model.layers.0.attn", "model.layers.1.attn"]
KV_CONFIG = KVCacheConfig(
    num_blocks=BLOCKS,
    kv_cache_tensors=[
        KVCacheTensor(
            size=len(NAMES) * BLOCKS * SPEC.page_size_bytes,
            layers=NAMES,
            layer_stride=BLOCKS * SPEC.page_size_bytes,
            block_stride=SPEC.page_size_bytes,
        )
    ],
    kv_cache_groups=[KVCacheGroupSpec(NAMES, SPEC)],
)


@pytest.fixture
def engine_config(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The part of vLLM's config that the allocation reads. No KV is allocated yet."""
    layer = SimpleNamespace(bind_kv_cache=lambda kv_cache: None)
    config = SimpleNamespace(
        additional_config={},
        attention_config=SimpleNamespace(hisparse_config=None),
        cache_config=SimpleNamespace(
            block_size=SPEC.block_size, get_resolved_kv_cache_layout=lambda: KVCacheLayout.LBHNC
        ),
        compilation_config=SimpleNamespace(static_forward_context=dict.fromkeys(NAMES, layer)),
        model_config=SimpleNamespace(hf_config=SimpleNamespace(model_type="qwen2")),
    )
    monkeypatch.setattr(kv_tensor, "get_current_vllm_config", lambda: config)
    monkeypatch.setattr(kv_tensor, "_ranges", [])
    return config


def test_vllms_first_model_runner_has_its_kv_in_our_memory(engine_config: Any) -> None:
    runner = SimpleNamespace(
        **vars(engine_config),
        attn_groups=[],
        device=torch.device("cpu"),
        kv_caches=[],
        shared_kv_cache_layers={},
        speculative_config=None,
    )
    GPUModelRunner.initialize_kv_cache_tensors(runner, KV_CONFIG, [SPEC.block_size])
    assert len(runner.kv_caches) == len(NAMES)
    assert describe(runner.kv_caches)["block_bytes"] == len(NAMES) * SPEC.page_size_bytes


def test_vllms_second_model_runner_has_its_kv_in_our_memory(
    engine_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(second_runner, "get_shared_kv_cache_layers", lambda config: {})
    kv_caches = second_runner.init_kv_cache(
        engine_config.compilation_config.static_forward_context,
        KV_CONFIG,
        torch.device("cpu"),
        [SPEC.block_size],
        engine_config,
    )
    block_bytes = describe(list(kv_caches.values()))["block_bytes"]
    assert block_bytes == len(NAMES) * SPEC.page_size_bytes
