"""A worker whose KV is not in FlashEdge's memory is refused before its first request."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
)
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.worker.gpu import attn_utils as second_runner
from vllm.v1.worker.gpu import warmup
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from flashedge.engine.vllm.inside.keys import ARGS_KEY, KV_START, SECOND_RUNNER
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


@pytest.mark.parametrize("drafted", [0, 7])
def test_a_second_runner_starts_with_the_blocks_that_it_warms_up_with(
    monkeypatch: pytest.MonkeyPatch, drafted: int
) -> None:
    """Its share of the memory has fewer. vLLM's own warm-up says which blocks it writes."""
    sequences, blocks, written = 6, 64, set[int]()
    config = SimpleNamespace(
        additional_config={ARGS_KEY: {KV_START: 0.01, SECOND_RUNNER: True}},
        num_speculative_tokens=drafted,
        num_lookahead_tokens=drafted,
        is_mm_encoder_only=False,
        model_config=SimpleNamespace(max_model_len=16, get_vocab_size=lambda: 64),
        cache_config=SimpleNamespace(block_size=SPEC.block_size),
        scheduler_config=SimpleNamespace(max_num_seqs=sequences, max_num_batched_tokens=4096),
    )
    zeroer = SimpleNamespace(warmup=lambda count: None, zero_block_ids=written.update)
    runner: Any = SimpleNamespace(
        vllm_config=config,
        scheduler_config=config.scheduler_config,
        model_config=config.model_config,
        kv_cache_config=KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], SPEC)]),
        num_speculative_steps=drafted,
        decode_query_len=1 + drafted,
        max_model_len=2048,
        model_state=None,
        adaptive_verification=None,
        rejection_sampler=None,
        block_tables=None,
        is_pooling_model=False,
        is_encoder_decoder=False,
        is_last_pp_rank=True,
        kv_connector=SimpleNamespace(set_disabled=lambda is_disabled: None),
        kv_block_zeroer=zeroer,
    )

    def note(output: SchedulerOutput) -> None:
        found = [request.block_ids for request in output.scheduled_new_reqs]
        found += filter(None, output.scheduled_cached_reqs.new_block_ids)
        written.update(block for groups in found for ids in groups for block in ids)

    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)
    warmup.warmup_kernels(runner, note, lambda grammar: None)
    pages = HostPages(blocks * PAGE)
    kv = KvRange(pages, [pages.tensor.view(blocks, PAGE)], blocks)
    kv_tensor._claim_start(kv, cast("Any", config), blocks)
    assert written <= set(range(kv.count_claimed()))
    assert sequences < kv.count_claimed() < blocks
