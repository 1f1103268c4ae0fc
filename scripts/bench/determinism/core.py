"""vLLM's engine core in this process, stepped by hand: arrivals fall between two steps.

It is the core of the generator's engine, with our scheduler and model runner, without the processes
around it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flashedge.engine.vllm import compat
from flashedge.engine.vllm.engine_options import EngineOptions
from flashedge.engine.vllm.inside.keys import ARGS_KEY, BOUNDARY, DETERMINISTIC, LOGPROBS
from flashedge.scheduling.determinism import PassShape

BUNDLED = Path(__file__).parents[3] / "flashedge" / "bundled" / "generator"
SCHEDULER = "flashedge.engine.vllm.inside.scheduler.EdgeScheduler"


@dataclass(slots=True, kw_only=True)
class Job:
    """A request to the core, and what came of it."""

    name: str
    prompt: tuple[int, ...]
    max_tokens: int
    seed: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    deterministic: bool = True
    arrival: int = 0
    """The step before which it arrives."""
    stop_ids: tuple[int, ...] = ()
    boundary: str | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: str | None = None
    output_s: list[float] = field(default_factory=list)
    """Seconds from its arrival to each of its outputs."""
    cached: int = 0
    """Prompt tokens whose KV was found."""

    def again(self, **changes: Any) -> Job:
        """The same request, not yet sent."""
        empty: dict[str, Any] = {"tokens": [], "logprobs": [], "finish": None, "output_s": []}
        return replace(self, **{**empty, **changes})


class Core:
    """One engine core."""

    def __init__(
        self,
        shape: PassShape,
        *,
        dtype: str = "bfloat16",
        model: Path = BUNDLED,
        kv_blocks: int = 800,
        max_model_len: int = 512,
        threads: int = 1,
        scheduler: str = SCHEDULER,
        max_num_seqs: int = 64,
        block_tokens: int = 32,
        boundaries: Mapping[str, Any] | None = None,
        is_async: bool = False,
    ) -> None:
        """is_async: whether a step is scheduled while one is computed, as on a card."""
        compat.prepare_environment(threads)
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        import torch
        from vllm.v1.engine.core import EngineCore
        from vllm.v1.executor import Executor

        torch.set_num_threads(threads)
        options = EngineOptions(
            name="generator",
            model=model,
            dtype=dtype,
            max_model_len=max_model_len,
            kv_bytes=kv_blocks * count_block_bytes(model, dtype, block_tokens),
            max_num_seqs=max_num_seqs,
            block_tokens=block_tokens,
            boundaries=boundaries or {},
            extra={
                "scheduler_cls": scheduler,
                "logits_processors": ["flashedge.engine.vllm.inside.noise:PositionNoise"],
            },
        )
        config = options.build_args().create_engine_config()
        config.scheduler_config.async_scheduling = is_async  # vLLM sets it off on a CPU
        self.core: Any = EngineCore(config, Executor.get_class(config), log_stats=False)
        self.scheduler.passes.windows.set_shape(shape)
        self.step_s: list[float] = []
        """Seconds of each step."""

    def renew(self, shape: PassShape, scheduler: type[Any]) -> None:
        """Go on with another scheduler and an empty prefix cache."""
        old, config = self.scheduler, self.core.vllm_config
        assert not old.has_unfinished_requests(), "no request is open"
        self.core.step_fn()  # the runner forgets the finished requests
        while self.core.batch_queue:
            self.core.step_fn()
        self.core.scheduler = scheduler(
            vllm_config=config,
            kv_cache_config=old.kv_cache_config,
            structured_output_manager=self.core.structured_output_manager,
            block_size=old.block_size,
            hash_block_size=old.hash_block_size,
            log_stats=False,
        )
        self.scheduler.passes.windows.set_shape(shape)

    @property
    def scheduler(self) -> Any:
        return self.core.scheduler

    @property
    def runner(self) -> Any:
        return self.core.model_executor.driver_worker.worker.model_runner

    def add(self, job: Job) -> None:
        from vllm import SamplingParams
        from vllm.v1.engine import EngineCoreRequest

        ours = {
            "seed": job.seed,
            "temperature": job.temperature,
            "top_k": job.top_k,
            "top_p": job.top_p,
            LOGPROBS: True,
            DETERMINISTIC: job.deterministic,
            BOUNDARY: job.boundary,
        }
        params = SamplingParams(
            temperature=0.0,
            max_tokens=job.max_tokens,
            stop_token_ids=list(job.stop_ids),
            logprobs=0,
            extra_args={ARGS_KEY: ours},
        )
        request = EngineCoreRequest(
            request_id=job.name,
            prompt_token_ids=list(job.prompt),
            mm_features=None,
            sampling_params=params,
            pooling_params=None,
            arrival_time=time.time(),
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        self.core.add_request(*self.core.preprocess_add_request(request))

    def abort(self, name: str) -> None:
        self.core.abort_requests([name])

    def run(
        self,
        jobs: Sequence[Job],
        *,
        between: Callable[[int], None] | None = None,
        max_steps: int = 100_000,
    ) -> None:
        """Step until all jobs are done. `between` is called before each step, with its number."""
        waiting = sorted(jobs, key=lambda job: job.arrival)
        open_jobs: dict[str, Job] = {}
        sent: dict[str, float] = {}
        for step in range(max_steps):
            while waiting and waiting[0].arrival <= step:
                job = waiting.pop(0)
                open_jobs[job.name] = job
                sent[job.name] = time.perf_counter()
                self.add(job)
            if between is not None:
                between(step)
            if not (waiting or self.scheduler.has_requests() or self.core.batch_queue):
                return
            start = time.perf_counter()
            outputs, _ = self.core.step_fn()
            now = time.perf_counter()
            self.step_s.append(now - start)
            for of_client in (outputs or {}).values():
                for output in of_client.outputs:
                    note(open_jobs[output.request_id], output, now - sent[output.request_id])
        raise AssertionError(f"not done after {max_steps} steps")

    def close(self) -> None:
        self.core.shutdown()


def note(job: Job, output: Any, since_s: float) -> None:
    """Note one output of the core."""
    job.tokens += output.new_token_ids
    job.logprobs += (output.kv_transfer_params or {}).get(LOGPROBS, ())
    if output.prefill_stats is not None:
        job.cached = output.prefill_stats.num_cached_tokens
    job.output_s.append(since_s)
    if output.finish_reason is not None:
        job.finish = str(output.finish_reason)


def count_block_bytes(model: Path, dtype: str, block_tokens: int) -> int:
    """Bytes of a KV block."""
    import json

    config = json.loads((model / "config.json").read_text())
    heads = config["num_key_value_heads"]
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    width = {"bfloat16": 2, "float16": 2, "float32": 4}[dtype]
    return int(2 * config["num_hidden_layers"] * heads * size * width * block_tokens)
