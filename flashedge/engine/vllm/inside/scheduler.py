"""vLLM's scheduler with what FlashEdge needs inside it: step boundaries, and a KV quota.

Boundaries are found here and not by stop strings in the front end. The front end sees tokens a step
or more late, but speculation has to know the boundary where slots are filled.

Ref: arXiv 2509.00195 §4.1.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing import connection
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from flashedge.engine.vllm.inside.draft_requests import read_noise_args
from flashedge.engine.vllm.inside.keys import BOUNDARY, LOGPROBS
from flashedge.engine.vllm.inside.packed_logprobs import pack_logprobs
from flashedge.engine.vllm.inside.patches import ProcessKind, apply_patches
from flashedge.engine.vllm.inside.speculation import SpeculativeScheduler

# VLLM_PLUGINS in the user's shell may keep vLLM from calling our plugin.
apply_patches(ProcessKind.CORE)


class EdgeScheduler(SpeculativeScheduler):
    """Ends a request at its step's boundary, if the request asks for it, and packs the
    log-probabilities of our requests.

    The base classes draft what follows the step, and keep the KV blocks within a quota.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _die_with_daemon()

    # ------------------------------------------------------------ boundaries

    def _update_request_with_output(
        self, request: Request, new_token_ids: list[int], is_stale: bool = False
    ) -> tuple[list[int], bool]:
        start, name = self.locate_step(request)
        rule = self._rules.get(name)
        if rule is None:
            return super()._update_request_with_output(request, new_token_ids, is_stale)
        kept: list[int] = []
        for token in new_token_ids:
            previous = request.output_token_ids[-1] if request.num_output_tokens > start else None
            _, stopped = super()._update_request_with_output(request, [token], is_stale)
            kept.append(token)
            if rule.ends_step(previous, token):
                request.status = RequestStatus.FINISHED_STOPPED
                request.stop_reason = BOUNDARY
                stopped = True
            if stopped:
                return kept, True
        return kept, False

    # ------------------------------------------------------------ log-probabilities

    def update_from_output(
        self, scheduled: SchedulerOutput, ran: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        as_vllm = {name for name in scheduled.num_scheduled_tokens if not self._is_packed(name)}
        outputs = super().update_from_output(scheduled, ran)
        for of_client in outputs.values():
            for output in of_client.outputs:
                if output.new_logprobs is not None and output.request_id not in as_vllm:
                    pack_logprobs(output)
        return outputs

    def _is_packed(self, name: str) -> bool:
        request = self.requests.get(name)
        return request is None or bool(read_noise_args(request).get(LOGPROBS))


def _die_with_daemon() -> None:
    """End this engine process when the daemon is killed, so that it is not orphaned.

    Linux's PR_SET_PDEATHSIG would watch the fork server, which lives as long as its children.
    multiprocessing gives every child a pipe that only the daemon holds open.
    """
    daemon = multiprocessing.parent_process()
    if daemon is None:
        return  # in the daemon's own process (tests)

    def watch() -> None:
        connection.wait([daemon.sentinel])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="die-with-daemon", daemon=True).start()
