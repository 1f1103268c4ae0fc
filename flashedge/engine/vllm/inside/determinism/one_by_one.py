"""Steps that follow each other while a deterministic request is open, in an asynchronous engine.

Such an engine schedules a step while the one before is computed, but a pass begins where the step
before ended. So the core ends the steps in flight, waits for the outputs of each step, and the
model runner copies the drawn tokens to the host at once.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.engine.core import EngineCore
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

_step_with_batch_queue = EngineCore.step_with_batch_queue
_sample_tokens = GPUModelRunner.sample_tokens
_ALONE = "flashedge_alone"
"""The attribute of a SchedulerOutput. vLLM pickles it along to workers in other processes."""


def mark_alone(output: Any) -> None:
    setattr(output, _ALONE, True)


def step_with_batch_queue(self: EngineCore) -> Any:
    """While there is a deterministic request: end the steps in flight, then compute one."""
    passes = getattr(self.scheduler, "passes", None)
    if passes is None or not passes.is_open:
        for future, *_ in self.batch_queue:
            if future.done():  # a step whose sampling could not begin: the next one would fail for
                future.result()  # want of its tokens, and hide why
        return _step_with_batch_queue(self)
    if not self.batch_queue:
        return self.step()
    future, scheduled, executed = self.batch_queue.pop()
    with self.log_error_detail(scheduled):
        ran = future.result()
        if ran is None:
            executed.result()  # raises what ended the step
            raise RuntimeError("a step ended without outputs")
    self._process_aborts_queue()
    outputs = self.scheduler.update_from_output(scheduled, ran)
    self._attach_weight_version(outputs)
    return outputs, True


def sample_tokens(self: GPUModelRunner, grammar_output: Any) -> Any:
    state = self.execute_model_state
    if state is None or not getattr(state.scheduler_output, _ALONE, False):
        return _sample_tokens(self, grammar_output)
    was_async, self.use_async_scheduling = self.use_async_scheduling, False
    try:
        return _sample_tokens(self, grammar_output)
    finally:
        self.use_async_scheduling = was_async
