"""Checks the version of vLLM, and sets the environment variables that it reads.

scripts/vllm_seams lists the names of vLLM that FlashEdge depends on, and compares them with another
vLLM before an upgrade. `inside.patches` lists those that FlashEdge adds to vLLM or replaces in it.
"""

import logging
import os

from flashedge.engine.platform import CHECKED_MINOR, find_vllm, runs_on_cpu
from flashedge.errors import ConfigError

log = logging.getLogger(__name__)

ALLOW = "FLASHEDGE_ALLOW_VLLM"


def check_version() -> None:
    """Raise ConfigError for an unchecked version of vLLM, or warn if FLASHEDGE_ALLOW_VLLM=1."""
    name, version = find_vllm()
    if version.startswith(f"{CHECKED_MINOR}."):
        return
    problem = f"{name} {version} is installed, but FlashEdge was checked with {CHECKED_MINOR}.*"
    if os.environ.get(ALLOW) == "1":
        log.warning("%s; %s=1 lets it start", problem, ALLOW)
        return
    raise ConfigError(
        problem,
        hint=f"run scripts/setup.sh, or set {ALLOW}=1 at your own risk;"
        " `python -m scripts.vllm_seams compare` lists what differs",
    )


def prepare_environment(threads: int = 1, *, batch_invariant: bool = False) -> None:
    """Set environment variables for this process and its children. vLLM reads some on import, so
    this has to come first. threads: of each engine on a CPU."""
    settings = {
        # For code without our patches. Our engines choose by their options (`inside.runner_kind`).
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        # vLLM would compile FlashInfer's sampler at start, which needs nvcc. Our noise replaces it.
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        # vLLM would pin both engines to core 0.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(threads),
        # See `batch_invariance`. A 1 in the user's shell would break engines on a CPU.
        "VLLM_BATCH_INVARIANT": "1" if batch_invariant else "0",
        # For the workers of several cards. A fork would copy locks that other threads hold.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if runs_on_cpu():
        settings["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        # Even in eager mode vLLM compiles a helper, which takes seconds and a C++ compiler.
        settings["TORCHDYNAMO_DISABLE"] = "1"
        # oneDNN compiles a kernel for each batch size and keeps 1,024 of them, which took 280 MiB
        # of each engine. vLLM keeps the last 128 of each layer's shape by itself.
        os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
    else:
        # Torch would otherwise ask CUDA whether there are cards, and then no fork could use CUDA.
        settings["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        # CUDA would otherwise number cards by speed, but NVML numbers them by their slots.
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if batch_invariant:
        # For some models vLLM sets this in our process while it builds an engine's configuration.
        # Whether the other engine sees it would depend on which thread is faster.
        os.environ.setdefault("VLLM_USE_BREAKABLE_CUDAGRAPH", "0")
    os.environ.update(settings)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


def prepare_decoders() -> None:
    """Make the decoders of vLLM's messages before two engines start in two threads.

    msgspec 0.22 caches its description of a type before it is complete. A decoder that another
    thread makes meanwhile crashes this process by signal 11.
    """
    from msgspec.msgpack import Decoder
    from vllm.v1.engine import EngineCoreOutputs, EngineCoreReadyResponse

    Decoder(EngineCoreOutputs)
    Decoder(EngineCoreReadyResponse)
