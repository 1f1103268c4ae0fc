"""What ties FlashEdge to one version of vLLM: the check at start and the environment.

scripts/vllm_seams lists the names of vLLM that FlashEdge depends on, and compares them with another
vLLM before an upgrade. `inside.patches` lists those that it adds to vLLM or replaces in it.
"""

import logging
import os

from flashedge.engine.platform import CHECKED, find_vllm, runs_on_cpu
from flashedge.errors import ConfigError

log = logging.getLogger(__name__)

ALLOW = "FLASHEDGE_ALLOW_VLLM"


def check_version() -> None:
    """Raise ConfigError on a minor version of vLLM that FlashEdge was not checked with, or warn if
    FLASHEDGE_ALLOW_VLLM=1."""
    name, version = find_vllm()
    if version.startswith(f"{CHECKED}."):
        return
    problem = f"{name} {version} is installed, but FlashEdge was checked with {CHECKED}.*"
    if os.environ.get(ALLOW) == "1":
        log.warning("%s; %s=1 lets it start", problem, ALLOW)
        return
    raise ConfigError(
        problem,
        hint=f"run scripts/setup.sh, or set {ALLOW}=1 at your own risk;"
        " `python -m scripts.vllm_seams compare` lists what differs",
    )


def prepare_environment(threads: int = 1, *, batch_invariant: bool = False) -> None:
    """Set the variables that vLLM reads on import, for this process and its children."""
    settings = {
        # What uses vLLM without our patches gets the first model runner; our engines' options name
        # theirs (`inside.runner_kind`).
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        # vLLM tries FlashInfer's sampler at start. That compiles it, which fails without nvcc, and
        # our noise samples without it.
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        # vLLM would pin both engines to core 0.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(threads),
        # See `batch_invariance`. In the user's shell it would break the engines of a CPU.
        "VLLM_BATCH_INVARIANT": "1" if batch_invariant else "0",
        # The workers of an engine with several cards. A fork would copy the locks of the core's
        # threads.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if runs_on_cpu():
        settings["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        # vLLM compiles one sampling helper even in eager mode. That takes seconds at the first
        # token and needs a C++ compiler.
        settings["TORCHDYNAMO_DISABLE"] = "1"
        # oneDNN compiles a kernel for each batch size and keeps 1,024 of them, which took 280 MiB
        # of each engine. vLLM keeps the last 128 of each layer's shape by itself.
        os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
    else:
        # Torch would ask CUDA whether there are cards, and no process forked later could use it.
        settings["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        # CUDA would otherwise call the fastest card the first, and NVML the one in the first slot.
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if batch_invariant:
        # For some models vLLM sets this in our process when it reads their options, and whether the
        # other engine sees it would depend on which thread is faster.
        os.environ.setdefault("VLLM_USE_BREAKABLE_CUDAGRAPH", "0")
    os.environ.update(settings)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


def prepare_decoders() -> None:
    """Make the decoders of vLLM's messages before two engines start in two threads.

    msgspec 0.22 publishes what it knows of a type before that is complete; another thread's decoder
    that uses it meanwhile ends this process by signal 11.
    """
    from msgspec.msgpack import Decoder
    from vllm.v1.engine import EngineCoreOutputs, EngineCoreReadyResponse

    Decoder(EngineCoreOutputs)
    Decoder(EngineCoreReadyResponse)
