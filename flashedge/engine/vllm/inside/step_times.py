"""Measures the steps of vLLM's scheduler: how many rows they have, and what a row costs.

All drafts, of steps and of tokens, are chosen by these costs (`scheduling.speculation.step_costs`).
"""

import time
from collections.abc import Callable
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput

from flashedge.engine.vllm.inside.determinism.windows import find_pass
from flashedge.scheduling.speculation.step_costs import MOST_SEQUENCES_ON_CPU, StepCosts, count_step

_BEGAN = "_flashedge_began_s"
"""The attribute of a `SchedulerOutput` that holds the time when its step began."""


def limit_sequences(scheduler: Any) -> int:
    """The sequences up to which a step may have drafts."""
    most = int(scheduler.max_num_running_reqs)
    on_cpu = scheduler.vllm_config.device_config.device_type == "cpu"
    return min(most, MOST_SEQUENCES_ON_CPU) if on_cpu else most


class StepTimes:
    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._began_s = self._ended_s = 0.0
        self.costs = StepCosts()
        self.counters = {
            "drafted_tokens": 0,  # rows that steps computed for drafted tokens
            "drafted_steps": 0,  # steps that had any
        }

    def begin(self) -> None:
        self._began_s = self._clock()

    def complete_output(self, output: SchedulerOutput) -> None:
        output.__dict__[_BEGAN] = self._began_s

    def end(self, scheduled: SchedulerOutput) -> None:
        # An asynchronous step waits while the one before it is computed.
        began_s = max(scheduled.__dict__.get(_BEGAN, 0.0), self._ended_s)
        self._ended_s = self._clock()
        if find_pass(scheduled) is not None:  # its guesses are no drafts
            return
        count_step(
            self.counters,
            self.costs,
            sequences=len(scheduled.num_scheduled_tokens),
            drafted=sum(map(len, scheduled.scheduled_spec_decode_tokens.values())),
            computed=scheduled.total_num_scheduled_tokens,
            seconds=self._ended_s - began_s,
        )
