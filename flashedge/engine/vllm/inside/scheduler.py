"""vLLM's scheduler with what FlashEdge needs inside it: step boundaries, a KV quota, and a record
of what each step computes.

Boundaries are found here and not by stop strings in the front end. The front end sees tokens a step
or more late, but speculation has to know the boundary where slots are filled. In an asynchronous
engine the next step is under way by then: the token that it draws behind a boundary is the first
one of a draft, or nobody's.

Most rules find a boundary by token ids. The rule entropy reads the log-probabilities of the
likeliest tokens, which its requests ask for and which vLLM hands to the scheduler with the drawn
token. Where it ends a step, that token has no KV yet and is never appended.

Ref: arXiv 2509.00195 §4.1.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator
from multiprocessing import connection
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from flashedge.engine.vllm.inside.determinism.replay_pass import find_pass
from flashedge.engine.vllm.inside.draft_requests import (
    read_entropy_rule,
    read_noise_args,
    wants_entropies,
)
from flashedge.engine.vllm.inside.keys import BOUNDARY, LOGPROBS
from flashedge.engine.vllm.inside.packed_logprobs import find_entropy, pack_logprobs
from flashedge.engine.vllm.inside.patches import ProcessKind, apply_patches
from flashedge.engine.vllm.inside.program_order import ProgramScheduler
from flashedge.engine.vllm.inside.step_record import get_step_record

# VLLM_PLUGINS in the user's shell may keep vLLM from calling our plugin.
apply_patches(ProcessKind.CORE)


class EdgeScheduler(ProgramScheduler):
    """Ends a request at its step's boundary, if the request asks for it, and packs the
    log-probabilities of our requests.

    It also writes the step record, by which the daemon knows whose step ended this process. The
    base classes sort the waiting requests by their programs, draft what follows the step, and keep
    the KV blocks within a quota.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._ran: ModelRunnerOutput | None = None
        self._step_record = get_step_record()
        self._in_flight: deque[tuple[tuple[str, ...], int]] = deque()
        """Of each step that was scheduled and has not ended: its requests, and its tokens."""
        _die_with_daemon()

    # ------------------------------------------------------------ the step record

    def add_request(self, request: Request) -> None:
        """A request that can't even be added is the one to blame."""
        self._step_record.begin_step((request.request_id,))
        super().add_request(request)
        self._record_steps()

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """The step begins. Where it can't be scheduled, any request may be why."""
        try:
            output: SchedulerOutput = super().schedule(*args, **kwargs)
        except Exception:
            self._step_record.begin_step(None)
            raise
        if output.num_scheduled_tokens:
            replay_pass = find_pass(output)
            tokens = replay_pass.rows if replay_pass else output.total_num_scheduled_tokens
            self._in_flight.append((tuple(self._list_requested(output)), tokens))
            self._record_steps()
        return output

    def _record_steps(self) -> None:
        """Write what is in flight: any of these steps may end the process."""
        if not self._in_flight:
            self._step_record.end_step()
            return
        names = dict.fromkeys(name for step, _ in self._in_flight for name in step)
        self._step_record.begin_step(names, sum(tokens for _, tokens in self._in_flight))

    def _list_requested(self, output: SchedulerOutput) -> Iterator[str]:
        """The front end's names of the requests in a step. It has none for a draft."""
        for name in output.num_scheduled_tokens:
            job = self._jobs.get(name)
            if job is None:
                yield name
            elif job.label is not None:
                yield job.label.name

    # ------------------------------------------------------------ boundaries

    def _update_request_with_output(
        self, request: Request, new_token_ids: list[int], is_stale: bool = False
    ) -> tuple[list[int], bool]:
        if self.forgets_token(request):
            return [], False
        start, name = self.locate_step(request)
        rule, entropy_rule = self._rules.get(name), read_entropy_rule(request)
        if (rule is None and entropy_rule is None) or self.withholds(request):
            return super()._update_request_with_output(request, new_token_ids, is_stale)
        kept: list[int] = []
        for at, token in enumerate(new_token_ids):
            count = request.num_output_tokens - start
            if entropy_rule and entropy_rule.ends_before(self._find_entropy(request, at), count):
                _end_at_boundary(request)
                return kept, True
            previous = request.output_token_ids[-1] if count else None
            _, stopped = super()._update_request_with_output(request, [token], is_stale)
            kept.append(token)
            if rule is not None and rule.ends_step(previous, token):
                _end_at_boundary(request)
                stopped = True
            if stopped:
                return kept, True
        return kept, False

    def may_end(self, request: Request) -> bool:
        start, name = self.locate_step(request)
        rule = self._rules.get(name)
        if rule is None or super().may_end(request):
            return super().may_end(request)
        tokens = request.output_token_ids
        previous = tokens[-2] if request.num_output_tokens - start > 1 else None
        return rule.ends_step(previous, tokens[-1])

    def _find_entropy(self, request: Request, at: int) -> float:
        """Of the distribution that the request's `at`-th new token was drawn from."""
        assert self._ran is not None, "tokens come with an engine step"
        assert self._ran.logprobs is not None, "the request asks for them"
        index = self._ran.req_id_to_index[request.request_id]
        return find_entropy(self._ran.logprobs.slice_request(index, at + 1).logprobs[at])

    # ------------------------------------------------------------ the end of a step

    def update_from_output(
        self, scheduled: SchedulerOutput, ran: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        self._ran = ran
        found = (self.requests.get(name) for name in scheduled.num_scheduled_tokens)
        requests = {request.request_id: request for request in found if request is not None}
        as_vllm = {name for name, r in requests.items() if not read_noise_args(r).get(LOGPROBS)}
        uncertain = {name for name, r in requests.items() if wants_entropies(r)}
        outputs = super().update_from_output(scheduled, ran)
        for of_client in outputs.values():
            for output in of_client.outputs:
                if output.new_logprobs is not None and output.request_id not in as_vllm:
                    pack_logprobs(output, with_entropies=output.request_id in uncertain)
        if scheduled.num_scheduled_tokens:
            self._in_flight.popleft()
        self._record_steps()
        return outputs


def _end_at_boundary(request: Request) -> None:
    request.status = RequestStatus.FINISHED_STOPPED
    request.stop_reason = BOUNDARY


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
