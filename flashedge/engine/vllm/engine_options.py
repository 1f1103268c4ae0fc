"""What one engine process is started with."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashedge.engine.platform import runs_on_cpu
from flashedge.engine.vllm.inside.keys import ARGS_KEY, KV_FIXED, KV_GUARDED, KV_KEY, KV_START

if TYPE_CHECKING:
    from vllm.engine.arg_utils import AsyncEngineArgs


# Share of the device that must be free for vLLM to start, whatever KV is asked for: 0.92 unless
# told, which the second engine on a card never finds. What one needs is `registry`'s to know.
LEAST_FREE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What one engine process is started with.

    kv_bytes: room for KV; kv_start_bytes: of it what has memory at first, None: all (on CPU as far
    as it is written); kv_fixed: its memory never goes back; guarded: see `keys.KV_GUARDED` (for
    tests); boundary: `search.steps.BoundaryRule` as JSON; block_tokens: tokens per KV block (on
    CPU a multiple of 32); offload_folder: for KV that waits in a file; offload_to_file: it always
    does, else only where memory is short; extra: further fields of vLLM's AsyncEngineArgs.
    """

    name: str
    model: Path
    dtype: str
    max_model_len: int
    kv_bytes: int
    kv_start_bytes: int | None = None
    kv_fixed: bool = False
    guarded: int | None = None
    boundary: Mapping[str, Any] | None = None
    max_num_seqs: int = 256
    max_batched_tokens: int = 4096
    block_tokens: int = 32
    offload_folder: Path = Path(tempfile.gettempdir())
    offload_to_file: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    def args(self) -> AsyncEngineArgs:
        """vLLM's own form."""
        from vllm.engine.arg_utils import AsyncEngineArgs

        return AsyncEngineArgs(
            model=str(self.model),
            dtype=self.dtype,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=max(self.max_batched_tokens, self.max_num_seqs),
            kv_cache_memory_bytes=self.kv_bytes,
            gpu_memory_utilization=LEAST_FREE,
            block_size=self.block_tokens,
            enable_prefix_caching=True,
            enforce_eager=runs_on_cpu(),
            async_scheduling=False,
            # By class name: on CPU vLLM turns "uni" into a second process, to set OMP's environment
            # there; ours is set before any process starts, and one process is faster than two.
            distributed_executor_backend="vllm.v1.executor.uniproc_executor.UniProcExecutor",
            scheduler_cls="flashedge.engine.vllm.inside.scheduler.EdgeScheduler",
            worker_extension_cls="flashedge.engine.vllm.inside.kv.worker.KvMemory",
            disable_log_stats=True,
            enable_log_requests=False,
            additional_config={ARGS_KEY: self._ours()},
            **self.extra,
        )

    def _ours(self) -> dict[str, Any]:
        """What our code inside vLLM is told. It counts in the key of vLLM's compile cache."""
        start = self.kv_start_bytes
        kv = {
            KV_START: start and start / self.kv_bytes,
            KV_FIXED: self.kv_fixed,
            KV_GUARDED: self.guarded,
        }
        ours: dict[str, Any] = {KV_KEY: {name: value for name, value in kv.items() if value}}
        return ours if self.boundary is None else {**ours, "boundary": self.boundary}
