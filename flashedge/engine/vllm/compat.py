"""What ties FlashEdge to one version of vLLM: the version check, the environment, the seams.

A seam is a place where FlashEdge depends on more than vLLM's public API. Another minor version of
vLLM is refused unless FLASHEDGE_ALLOW_VLLM=1. Names that FlashEdge adds to vLLM or replaces in it
are listed in `inside.patches`. These are the other seams, by the file that uses them:

`inside/scheduler.py`, a Scheduler subclass for `scheduler_cls`
    overrides `_update_request_with_output`.
`inside/speculation.py`
    overrides `add_request`, `finish_requests`, `_handle_stopped_request`, `schedule`,
    `update_from_output`, `has_requests`; calls `_enqueue_waiting_request`; reads `running`,
    `waiting`, `kv_holding_waiting`, `requests`, `max_num_active_reqs`.
`inside/paused_requests.py`
    overrides `_preempt_request`; calls `_free_request_blocks`; wraps
    `kv_cache_manager.allocate_slots` of its own scheduler.
`inside/draft_requests.py`
    raises `Request.max_tokens` while the request lives; reads `Request._block_hasher`; builds
    `LogprobsLists` and `PrefillStats`; carries the drafted tokens' count in `kv_transfer_params`.
`inside/kv/quota.py`
    overrides `_preempt_request`; uses `pause_state`, `set_pause_state`, `get_block_ids`, and the
    block pool's `blocks`, `get_new_blocks`, `free_blocks`, `evict_blocks` and `touch`.
`inside/kv/worker.py`, `inside/kv/tensor.py`
    a worker extension for `worker_extension_cls`; lays the layers out by `create_kv_cache_views`.
`inside/noise.py`
    a logits processor, which only the first of vLLM's two model runners accepts.
`inside/skywork_model.py`
    uses `pooler_for_token_classify` and `PoolerClassify`.
`process.py`
    uses `AsyncLLM.output_processor.propagate_error`, `AsyncLLM.output_handler` and
    `engine_core.resources.engine_manager` to fail open requests at once when the process dies.
`compat.prepare_decoders`
    decodes `EngineCoreOutputs` and `EngineCoreReadyResponse`, the messages of an engine process.
"""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing import forkserver
from multiprocessing.context import BaseContext

from flashedge.engine.platform import find_vllm, runs_on_cpu
from flashedge.errors import ConfigError

CHECKED = "0.32"
"""The minor version of vLLM that the seams were checked with."""
_PRELOAD = "flashedge.engine.vllm.inside.preload"


def check_version() -> None:
    """Raise ConfigError on a vLLM that the seams were not checked with."""
    name, version = find_vllm()
    if not version.startswith(CHECKED + ".") and os.environ.get("FLASHEDGE_ALLOW_VLLM") != "1":
        raise ConfigError(
            f"{name} {version} is installed, but FlashEdge was checked with {CHECKED}.*",
            hint="run scripts/setup.sh, or set FLASHEDGE_ALLOW_VLLM=1 at your own risk",
        )


def prepare_environment(threads: int = 1) -> None:
    """Set the variables that vLLM reads on import, for this process and its children.

    Call it before the first import of vllm.
    """
    settings = {
        # The second model runner refuses logits processors like ours.
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        # vLLM tries FlashInfer's sampler at start. That compiles it, which fails without nvcc, and
        # our noise samples without it.
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        # vLLM would pin both engines to core 0.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(threads),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    if runs_on_cpu():
        # vLLM compiles one sampling helper even in eager mode. That takes seconds at the first
        # token and needs a C++ compiler.
        settings["TORCHDYNAMO_DISABLE"] = "1"
    os.environ.update(settings)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


def start_fork_server() -> None:
    """Start the process that imports vLLM once and from which CPU engines are forked.

    A fork from it takes seconds less than a fresh import. It is safe where a fork of the daemon is
    not, because the server has one thread, no event loop and no sockets. Call this first in the
    daemon: the server imports while the daemon goes on.
    """
    if runs_on_cpu():
        multiprocessing.set_forkserver_preload([_PRELOAD])
        forkserver.ensure_running()


def get_mp_context() -> BaseContext:
    """Return how engine processes start: from the fork server on CPU, by a spawn on CUDA."""
    return multiprocessing.get_context("forkserver" if runs_on_cpu() else "spawn")


def prepare_decoders() -> None:
    """Make the decoders of vLLM's messages before two engines start in two threads.

    The first decoder of a type publishes what it knows of the type before it is complete (msgspec
    0.22). A second decoder that another thread makes and uses meanwhile ends this process by
    signal 11.
    """
    from msgspec.msgpack import Decoder
    from vllm.v1.engine import EngineCoreOutputs, EngineCoreReadyResponse

    Decoder(EngineCoreOutputs)
    Decoder(EngineCoreReadyResponse)
