"""Runs a model of vLLM on tensors without data and counts what is alive at the peak."""

from __future__ import annotations

from typing import Any

import torch

from flashedge.engine.vllm.inside.step_memory import LiveBytes

KERNELS = {
    "rms_norm": "(Tensor! out, Tensor input, Tensor weight, float epsilon) -> ()",
    "fused_add_rms_norm": ("(Tensor! input, Tensor! residual, Tensor weight, float epsilon) -> ()"),
    "silu_and_mul": "(Tensor! result, Tensor input) -> ()",
    "rotary_embedding": (
        "(Tensor positions, Tensor! query, Tensor!? key, int head_size, Tensor cos_sin_cache,"
        " bool is_neox) -> ()"
    ),
}
"""The CUDA kernels of a Qwen2 layer, which write into tensors of their callers."""
QUESTIONS = ("cutlass_scaled_mm_supports_fp8", "cutlass_scaled_mm_supports_block_fp8")
_libraries = []  # a library's operators live as long as it does


def register_kernels() -> None:
    library = torch.library.Library("_C", "FRAGMENT")
    for name, signature in KERNELS.items():
        if not hasattr(torch.ops._C, name):
            library.define(name + signature)
        library.impl(name, lambda *args: None, "Meta")
    for name in QUESTIONS:
        if not hasattr(torch.ops._C, name):
            library.define(name + "(int capability) -> bool")
        library.impl(name, lambda capability: False, "CompositeExplicitAutograd")
    from vllm.model_executor.layers.attention import attention  # it defines vLLM's own operators

    assert attention
    ours = torch.library.Library("vllm", "IMPL")
    ours.impl("unified_attention_with_output", lambda *args, **kwargs: None, "Meta")
    ours.impl("unified_kv_cache_update", lambda key, *args: key.new_empty(0), "Meta")
    _libraries.extend((library, ours))


def count_peak(config: Any) -> int:
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.distributed.parallel_state import model_parallel_is_initialized
    from vllm.forward_context import set_forward_context
    from vllm.model_executor.model_loader.utils import initialize_model

    with set_current_vllm_config(config):
        if not model_parallel_is_initialized():
            init_distributed_environment(1, 0, "tcp://127.0.0.1:0", 0, backend="gloo")
            initialize_model_parallel(1, 1)
        with torch.device("meta"):
            torch.set_default_dtype(config.model_config.dtype)
            model = initialize_model(config)
            torch.set_default_dtype(torch.float32)
        tokens = config.scheduler_config.max_num_batched_tokens
        ids = torch.zeros(tokens, dtype=torch.int64, device="meta")
        context = set_forward_context(None, config, num_tokens=tokens)
        with torch.inference_mode(), context, LiveBytes() as live:
            model(ids, ids)
    return live.peak
