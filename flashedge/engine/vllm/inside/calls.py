"""What the daemon calls between two engine steps, by name.

`patches` adds `call` to vLLM's EngineCore as a method. Checked with vLLM 0.32.0.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from vllm.v1.engine import EngineCoreRequest, EngineCoreRequestType
from vllm.v1.engine.core import EngineCore, EngineCoreProc
from vllm.v1.serial_utils import MsgpackDecoder

from flashedge.engine.vllm.inside.kv import quota
from flashedge.engine.vllm.inside.step_record import FATAL, get_step_record
from flashedge.scheduling.determinism import ReplayShape

log = logging.getLogger("vllm")  # the step record listens to it
_DECODER = MsgpackDecoder(EngineCoreRequest)


def call(self: EngineCore, name: str, args: Sequence[Any]) -> Any:
    """Call one of `CALLS`. vLLM passes on one argument for each parameter, so `args` is one."""
    return CALLS[name](self, *args)


def add_requests(core: EngineCoreProc, packed: list[bytes]) -> None:
    """Add requests that the daemon sent together (`process.live_process`), as vLLM adds one."""
    for each in packed:
        request = _DECODER.decode([each])
        try:
            prepared = core.preprocess_add_request(request)
        except Exception:  # it concerns this request alone
            core._handle_request_preproc_error(request)
            continue
        try:
            core._handle_client_request(EngineCoreRequestType.ADD, prepared)
        except Exception as error:
            # vLLM ends the engine for this error where it adds a request; here it would log it.
            log.exception(FATAL[1])
            raise SystemExit(1) from error


CALLS: dict[str, Callable[..., Any]] = {
    "begin": quota.begin,
    "measure_memory": quota.measure_memory,
    "view": quota.view,
    "set_quota": quota.set_quota,
    "offload": quota.offload,
    "restore": quota.restore,
    "add_requests": add_requests,
    # An engine that hangs is found by the answer that it does not give.
    "beat": lambda core: get_step_record().progress,
    "rank_programs": lambda core, keys: core.scheduler.programs.rank(keys),
    "list_complete_drafts": lambda core, run: core.scheduler.drafts.list_complete(run),
    "drop_unused_drafts": lambda core, *args: core.scheduler.drafts.drop_unused(*args),
    "end_run": lambda core, run: core.scheduler.drafts.end_run(run),
    "get_counters": lambda core: {
        **core.scheduler.drafts.counters,
        "reordered": core.scheduler.programs.reordered,
    },
    "set_replay_shape": lambda core, shape: core.scheduler.passes.windows.set_shape(
        ReplayShape.from_json(shape)
    ),
}
