"""What every engine process imports. The fork server imports it once for all of them."""

import torch
import vllm.model_executor.models.qwen2
import vllm.model_executor.models.qwen2_rm
import vllm.v1.attention.backends.cpu_attn
import vllm.v1.engine.async_llm
import vllm.v1.engine.core
import vllm.v1.worker.cpu_worker  # noqa: F401

torch.set_num_threads(1)
