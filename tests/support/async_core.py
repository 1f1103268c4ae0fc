"""vLLM's core loop around a runner that stands for the model, with two steps in flight."""

from __future__ import annotations

import queue
from collections import deque
from concurrent.futures import Future
from typing import Any

from flashedge.engine.vllm.inside.determinism import one_by_one


def make_async_core(scheduler: Any, runner: Any) -> Any:
    """vLLM's EngineCore in the state that an asynchronous engine gives it.

    runner: has `run`, see `token_runner`.
    """
    from vllm.v1.engine.core import EngineCore

    core: Any = EngineCore.__new__(EngineCore)
    core.vllm_config = scheduler.vllm_config
    core.scheduler, core.model_executor = scheduler, _Executor(runner)
    core.is_pooling_model = core.is_mm_encoder_only = core.check_for_draft_tokens = False
    core.async_scheduling = True
    core.batch_queue_size = 2
    core.batch_queue = deque(maxlen=2)
    core.aborts_queue = queue.Queue()
    core.use_spec_decode = False
    core._weight_version = None
    core.log_stats = False
    return core


def step_core(core: Any) -> tuple[dict[int, Any], bool]:
    """Returns the outputs of a step that ended, and whether anything was computed or ended."""
    outputs, computed = one_by_one.step_with_batch_queue(core)
    return outputs or {}, computed or outputs is not None


class _Executor:
    """Stands for vLLM's executor. Its steps are computed at once, and told later."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._ran: Any = None

    def execute_model(self, output: Any, non_block: bool = False) -> Future[Any]:
        self._ran = self._runner.run(output)
        future: Future[Any] = Future()
        future.set_result(None if output.total_num_scheduled_tokens else self._ran)
        return future

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        future: Future[Any] = Future()
        future.set_result(self._ran)
        return future if non_block else self._ran
