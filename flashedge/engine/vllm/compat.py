"""Everything that ties us to one vLLM: the version check, the environment, the patched seams.

Checked with vLLM 0.32.0. Seams used beyond the public API:
- `scheduler_cls` with a Scheduler subclass (scheduler.py): `_update_request_with_output`,
  `running`, `waiting`, `_preempt_request`, `kv_cache_manager.block_pool`;
- for requests that go on past their step (speculation.py, paused_requests.py): `schedule`,
  `add_request`, `finish_requests`, `update_from_output`, `_handle_stopped_request`,
  `_enqueue_waiting_request`, `kv_holding_waiting`, `kv_cache_manager.allocate_slots` (wrapped),
  `Request.max_tokens` raised while it lives, `kv_transfer_params` as a way to the front end;
- utility methods added to `EngineCore` (control.py), called by `call_utility_async`;
- the scheduler's pause state, its block pool's hashes and `max_num_active_reqs` (control.py,
  quota.py);
- a worker extension (kv_memory.py), and `gpu_model_runner.allocate_kv_cache` replaced
  (kv_tensor.py), which lays the layers out by vLLM's own `create_kv_cache_views`;
- the first of vLLM's two model runners, whose logits processors noise.py is made for; the second
  is the default on CUDA;
- `vllm.v1.engine.utils.get_mp_context`, replaced below on CPU by a preloaded fork server;
- `EngineCoreOutputs`, the message of an engine process (`learn_messages`);
- `AsyncLLM.output_processor.propagate_error` and `engine_core.resources.engine_manager`
  (process.py), to fail open requests at once when the process dies.
Another minor version is refused unless FLASHEDGE_ALLOW_VLLM=1.
"""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing import forkserver

from flashedge.engine.platform import find_vllm, runs_on_cpu
from flashedge.errors import ConfigError

CHECKED = "0.32"
_PRELOAD = "flashedge.engine.vllm.inside.preload"


def check_version() -> None:
    """Raises ConfigError on a vLLM that the overrides were not checked with."""
    name, version = find_vllm()
    if not version.startswith(CHECKED + ".") and os.environ.get("FLASHEDGE_ALLOW_VLLM") != "1":
        raise ConfigError(
            f"{name} {version} is installed, FlashEdge was checked with {CHECKED}.*",
            hint="run scripts/setup.sh, or set FLASHEDGE_ALLOW_VLLM=1 at your own risk",
        )


def prepare_environment(threads: int = 1) -> None:
    """Settings that must stand before vllm is imported, in this process and its children.

    nobind: vLLM would otherwise pin both engines to core 0. The first model runner: the second
    refuses logits processors like ours. No FlashInfer sampler: vLLM tries it at start, which
    compiles it and fails on a machine without nvcc, and our noise samples without it.
    """
    settings = {
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(threads),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    if runs_on_cpu():
        # vLLM compiles one sampling helper even in eager mode: seconds at the first token, and it
        # needs a C++ compiler on the machine.
        settings["TORCHDYNAMO_DISABLE"] = "1"
    os.environ.update(settings)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


def start_fork_server() -> None:
    """Start the process that imports vLLM once and from which CPU engines are forked.

    A fork from it takes seconds less than a fresh import, and is safe where a fork of the daemon
    is not: it has one thread, no event loop, no sockets. Call it first thing in the daemon; it
    imports in parallel with us.
    """
    if runs_on_cpu():
        multiprocessing.set_forkserver_preload([_PRELOAD])
        forkserver.ensure_running()


def patch_process_start() -> None:
    """Let vLLM take its engine processes from the fork server (CPU); CUDA needs a fresh spawn."""
    import vllm.v1.engine.utils as utils

    method = "forkserver" if runs_on_cpu() else "spawn"
    utils.get_mp_context = lambda: multiprocessing.get_context(method)


def learn_messages() -> None:
    """Let msgspec look at vLLM's messages before two engines start in two threads.

    The first decoder of a type shows others what it has found before it is whole (msgspec 0.22):
    a second one, made in another thread meanwhile and used at once, ends this process by signal 11.
    """
    from msgspec.msgpack import Decoder
    from vllm.v1.engine import EngineCoreOutputs, EngineCoreReadyResponse

    Decoder(EngineCoreOutputs)
    Decoder(EngineCoreReadyResponse)
