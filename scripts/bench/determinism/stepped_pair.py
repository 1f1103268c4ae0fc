"""The engines of the bundled pair in this process, stepped between the turns of the event loop.

Generator and verifier are those of the daemon, with our scheduler and model runner; only the
processes around vLLM's engine cores are missing. So kernels can be emulated (`kernel_variance`).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from flashedge.config import load_config
from flashedge.engine.base import EngineView, Health
from flashedge.engine.vllm import compat
from flashedge.engine.vllm.codec import HFCodec
from flashedge.engine.vllm.engine_options import EngineOptions
from flashedge.engine.vllm.generator import VllmGenerator, VllmSpeculator
from flashedge.engine.vllm.verifier import VllmVerifier
from flashedge.models.folders import resolve_model
from flashedge.models.registry import find_pair
from flashedge.models.specs import ModelSpec
from scripts.bench.determinism.core import count_block_bytes
from scripts.lab.scheduler_pair import EAGER

KV_BLOCKS = 400
BLOCK_TOKENS = 32
SEQUENCES = 64


class SteppedProcess:
    """Stands for `EngineProcess`: an engine core, its requests and what becomes of them."""

    def __init__(self, options: EngineOptions) -> None:
        from vllm.v1.engine.core import EngineCore
        from vllm.v1.executor import Executor

        from flashedge.engine.vllm.inside.kv import tensor

        self.options = options
        self.pid = os.getpid()
        config = options.build_args().create_engine_config()
        self.core: Any = EngineCore(config, Executor.get_class(config), log_stats=False)
        self._kv_range = tensor._ranges[-1]
        self.block_bytes = options.kv_bytes // self.core.scheduler.view()["blocks_total"]
        self._outputs: dict[str, asyncio.Queue[Any]] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()

    async def run(self) -> None:
        """Step for ever, one step at each turn of the event loop."""
        while True:
            if not self.core.scheduler.has_requests():
                self._idle.set()
                self._wake.clear()
                await self._wake.wait()
                continue
            outputs, _ = self.core.step_fn()
            for of_client in outputs.values():
                for output in of_client.outputs:
                    if (queue := self._outputs.get(output.request_id)) is not None:
                        queue.put_nowait(output)
            await asyncio.sleep(0)

    async def drain(self) -> None:
        """Return once no request is open. Requests that were just cancelled take a step."""
        self._idle.clear()
        self._wake.set()
        await self._idle.wait()

    # ------------------------------------------------------------ what the engines call

    @contextmanager
    def open_request(self, name: str) -> Iterator[SteppedProcess]:
        yield self

    async def call(self, name: str, *args: Any) -> Any:
        from flashedge.engine.vllm.inside.kv import tensor

        tensor._ranges[:] = [self._kv_range]  # a process has one engine elsewhere
        found = self.core.flashedge_call(name, args)
        self._wake.set()
        return found

    def health(self) -> Health:
        return Health(state="ready")

    async def view(self) -> EngineView:
        return EngineView(**await self.call("view"), block_bytes=self.block_bytes)

    def note_prompt(self, tokens: int, cached_tokens: int) -> None:
        """Prompts are not counted here."""

    async def generate(
        self, prompt: Any, params: Any, name: str, priority: int = 0
    ) -> AsyncGenerator[Any]:
        cached = 0
        async for output in self._stream(prompt, name, sampling_params=params, priority=priority):
            if output.prefill_stats is not None:
                cached = output.prefill_stats.num_cached_tokens
            reason = output.finish_reason
            part = SimpleNamespace(
                token_ids=output.new_token_ids,
                finish_reason=None if reason is None else str(reason),
                stop_reason=output.stop_reason,
            )
            yield SimpleNamespace(
                outputs=[part],
                finished=reason is not None,
                kv_transfer_params=output.kv_transfer_params,
                num_cached_tokens=cached,
            )

    async def encode(self, prompt: Any, params: Any, name: str) -> AsyncGenerator[Any]:
        params.verify(self.core.vllm_config.model_config)
        async for output in self._stream(prompt, name, pooling_params=params):
            if output.pooling_output is not None:
                yield SimpleNamespace(outputs=SimpleNamespace(data=output.pooling_output))

    async def _stream(self, prompt: Any, name: str, **fields: Any) -> AsyncGenerator[Any]:
        from vllm.v1.engine import EngineCoreRequest

        request = EngineCoreRequest(
            request_id=name,
            prompt_token_ids=prompt["prompt_token_ids"],
            mm_features=None,
            arrival_time=time.time(),
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
            **{"sampling_params": None, "pooling_params": None, **fields},
        )
        queue = self._outputs[name] = asyncio.Queue()
        self.core.add_request(*self.core.preprocess_add_request(request))
        self._wake.set()
        finished = False
        try:
            while not finished:
                output = await queue.get()
                finished = output.finish_reason is not None
                yield output
        finally:
            del self._outputs[name]
            if not finished:
                self.core.abort_requests([name])


class SteppedPair:
    """Both engines. Implements `runtime.drive.engines.TwinEngines`, without stock twins."""

    def __init__(self, dtype: str) -> None:
        """dtype: of both models."""
        compat.prepare_environment(1)
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        import torch

        from flashedge.engine.vllm.prm import find_family

        torch.set_num_threads(1)
        config = load_config()
        pair = find_pair("bundled", config)
        path = resolve_model(pair.generator, config)
        options = _build_options("generator", pair.generator, path, dtype)
        self.generator = VllmGenerator(options, HFCodec(path))
        path = resolve_model(pair.verifier, config)
        options = _build_options("verifier", pair.verifier, path, dtype)
        prm = find_family(pair.verifier.family)(path, pair.verifier.options)
        self.verifier = VllmVerifier(options, prm)
        self.processes = {}
        for engine in (self.generator, self.verifier):
            process: Any = SteppedProcess(engine.options)
            engine.process = self.processes[engine.options.name] = process
        self.generator.speculator = VllmSpeculator(self.generator.process)
        self.stock_generator, self.stock_verifier = self.generator, self.verifier

    def count_preemptions(self) -> int:
        """Of both engines, so far."""
        views = (process.core.scheduler.view() for process in self.processes.values())
        return sum(view["preemptions"] for view in views)

    def reset(self) -> None:
        """Forget all KV and all scores."""
        self.verifier.clear_score_cache()
        for process in self.processes.values():
            assert not process.core.scheduler.has_unfinished_requests(), "no request is open"
            process.core.scheduler.kv.set_quota(process.core.scheduler.view()["blocks_total"])
            process.core.scheduler.kv.drop_kv()

    @contextmanager
    def stepping(self) -> Iterator[None]:
        tasks = [asyncio.create_task(process.run()) for process in self.processes.values()]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()

    def close(self) -> None:
        for process in self.processes.values():
            process.core.shutdown()


def _build_options(name: str, spec: ModelSpec, path: Any, dtype: str) -> EngineOptions:
    return EngineOptions(
        name=name,
        model=path,
        dtype=dtype,
        max_model_len=spec.max_model_len,
        kv_bytes=KV_BLOCKS * count_block_bytes(path, dtype, BLOCK_TOKENS),
        max_num_seqs=SEQUENCES,
        block_tokens=BLOCK_TOKENS,
        extra={"scheduler_cls": EAGER},
    )
