"""Imports what every engine process needs. The fork server does so once for all of them."""

import contextlib
import importlib

import torch
import vllm.model_executor.models.qwen2
import vllm.model_executor.models.qwen2_rm
import vllm.v1.engine.async_llm
import vllm.v1.engine.core  # noqa: F401

from flashedge.engine.platform import runs_on_cpu

ON_CPU = ("vllm.v1.attention.backends.cpu_attn", "vllm.v1.worker.cpu_worker")
ON_CARDS = (
    "vllm.v1.attention.backends.flash_attn",
    "vllm.v1.attention.backends.triton_attn",
    "vllm.v1.worker.gpu_worker",
)

for name in ON_CPU if runs_on_cpu() else ON_CARDS:
    with contextlib.suppress(ImportError):  # an engine that needs the module fails and says why
        importlib.import_module(name)
if runs_on_cpu():
    torch.set_num_threads(1)  # forked processes would lack the threads that torch starts here
