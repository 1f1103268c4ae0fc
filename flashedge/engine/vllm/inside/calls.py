"""What the daemon calls between two engine steps. Those on the KV memory: `kv.quota`.

`patches` adds these functions to vLLM's EngineCore as methods. Checked with vLLM 0.32.0.
"""

from __future__ import annotations

import logging
from typing import Any

from vllm.v1.engine import EngineCoreRequest, EngineCoreRequestType
from vllm.v1.engine.core import EngineCore, EngineCoreProc
from vllm.v1.serial_utils import MsgpackDecoder

from flashedge.engine.vllm.inside.step_record import FATAL, get_step_record
from flashedge.scheduling.determinism import ReplayShape

log = logging.getLogger("vllm")  # the step record listens to it
_DECODER = MsgpackDecoder(EngineCoreRequest)


def beat(self: EngineCore) -> int:
    return get_step_record().progress


def add_requests(self: EngineCoreProc, packed: list[bytes]) -> None:
    """Add requests that the daemon has sent together (`process.outbox`), as vLLM adds one alone."""
    for each in packed:
        request = _DECODER.decode([each])
        try:
            prepared = self.preprocess_add_request(request)
        except Exception:  # it concerns this request alone
            self._handle_request_preproc_error(request)
            continue
        try:
            self._handle_client_request(EngineCoreRequestType.ADD, prepared)
        except Exception as error:
            # It ends the engine where a request comes alone. Here vLLM would go on without it.
            log.exception(FATAL[1])
            raise SystemExit(1) from error


def rank_programs(self: EngineCore, keys: list[str]) -> None:
    self.scheduler.programs.rank(keys)


def list_complete_drafts(self: EngineCore, run: str) -> list[tuple[int, list[int]]]:
    return self.scheduler.drafts.list_complete(run)


def drop_unused_drafts(
    self: EngineCore, run: str, levels: list[int], seeds: list[int], flat_batch: int
) -> int:
    return self.scheduler.drafts.drop_unused(run, levels, seeds, flat_batch)


def end_run(self: EngineCore, run: str) -> int:
    return self.scheduler.drafts.end_run(run)


def get_counters(self: EngineCore) -> dict[str, int]:
    scheduler = self.scheduler
    return {**scheduler.drafts.counters, "reordered": scheduler.programs.reordered}


def set_replay_shape(self: EngineCore, shape: dict[str, Any]) -> int:
    """Returns the rows of a pass."""
    chosen = ReplayShape.from_json(shape)
    self.scheduler.passes.windows.set_shape(chosen)
    return chosen.rows
