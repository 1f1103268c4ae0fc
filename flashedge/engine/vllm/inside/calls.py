"""The functions that the daemon calls by name between two engine steps.

`patches` adds `call` to vLLM's EngineCore as a method. Checked with vLLM 0.32.0.
"""

import logging
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest, EngineCoreRequestType
from vllm.v1.engine.core import EngineCore, EngineCoreProc
from vllm.v1.serial_utils import MsgpackDecoder

from flashedge.engine.vllm.inside.kv import quota
from flashedge.engine.vllm.inside.step_record import FATAL_ERROR, get_step_record
from flashedge.scheduling.determinism import PassShape

log = logging.getLogger("vllm")  # the step record takes errors from this logger
_REQUESTS, _PARAMS = MsgpackDecoder(EngineCoreRequest), MsgpackDecoder(SamplingParams)
_VALUES = MsgpackDecoder()


def call(self: EngineCore, name: str, args: Sequence[Any]) -> Any:
    """Call the function of `CALLS` with this name. vLLM refuses more arguments than a method has
    parameters, so all of them come as one sequence."""
    return CALLS[name](self, *args)


def add_requests(core: EngineCoreProc, packed: list[list[bytes | None]]) -> None:
    """Add requests that the daemon's `Outbox` sent in one message, each as `Outbox` packs it.

    Equal sampling parameters are decoded once. vLLM checks all of their fields again then, which
    takes longer than the rest of a request."""
    known: dict[bytes, SamplingParams] = {}
    for encoded, params, extra_args in packed:
        request = _REQUESTS.decode([encoded])
        if params is not None:
            if params not in known:
                known[params] = _PARAMS.decode([params])
            request.sampling_params = copy(known[params])
            request.sampling_params.extra_args = _VALUES.decode([extra_args])
        try:
            prepared = core.preprocess_add_request(request)
        except Exception:  # as in vLLM, it fails this request alone
            core._handle_request_preproc_error(request)
            continue
        try:
            core._handle_client_request(EngineCoreRequestType.ADD, prepared)
        except Exception as error:
            # vLLM ends the engine if adding a single request fails, but only logs a failed call.
            log.exception(FATAL_ERROR)
            raise SystemExit(1) from error


CALLS: dict[str, Callable[..., Any]] = {
    "begin": quota.begin,
    "measure_memory": quota.measure_memory,
    "view": quota.view,
    "set_quota": quota.set_quota,
    "offload": quota.offload,
    "restore": quota.restore,
    "add_requests": add_requests,
    # The heartbeat: a process that neither answers it nor makes progress counts as hung.
    "beat": lambda core: get_step_record().progress,
    "rank_programs": lambda core, keys: core.scheduler.programs.rank(keys),
    "list_complete_drafts": lambda core, run: core.scheduler.drafts.list_complete(run),
    "drop_unused_drafts": lambda core, *args: core.scheduler.drafts.drop_unused(*args),
    "commit_drafts": lambda core, *args: core.scheduler.drafts.commit(*args),
    "end_run": lambda core, run: core.scheduler.drafts.end_run(run),
    "get_counters": lambda core: {
        **core.scheduler.drafts.counters,
        "reordered": core.scheduler.programs.reordered,
    },
    "set_replay_shape": lambda core, shape: core.scheduler.passes.windows.set_shape(
        PassShape.from_json(shape)
    ),
}
