"""Takes requests that the daemon has sent together. See `process.outbox`.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

import functools
import logging

from vllm.v1.engine import EngineCoreRequest, EngineCoreRequestType
from vllm.v1.engine.core import EngineCoreProc
from vllm.v1.serial_utils import MsgpackDecoder

from flashedge.engine.vllm.inside.step_record import FATAL

log = logging.getLogger("vllm")  # the step record listens to it


def add_requests(self: EngineCoreProc, packed: list[bytes]) -> None:
    """Add requests as vLLM adds one that comes alone. packed: an EngineCoreRequest each."""
    for each in packed:
        request = _get_decoder().decode([each])
        try:
            prepared = self.preprocess_add_request(request)
        except Exception:  # whatever it is, it concerns this request alone
            self._handle_request_preproc_error(request)
            continue
        try:
            self._handle_client_request(EngineCoreRequestType.ADD, prepared)
        except Exception as error:
            # It ends the engine where a request comes alone. Here vLLM would go on without it.
            log.exception(FATAL[1])
            raise SystemExit(1) from error


@functools.cache
def _get_decoder() -> MsgpackDecoder:
    return MsgpackDecoder(EngineCoreRequest)
