"""Logs a request that is refused on one line.

vLLM's handlers log each exception with its traceback, a full queue and a prompt that is too long as
well. The client is told the reason, and nothing is wrong with the daemon.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

import logging

from vllm.exceptions import GracefulHTTPError, RetryableRequestError, VLLMClientError

from flashedge.engine.request_tags import find_failure

REFUSALS = (VLLMClientError, GracefulHTTPError, RetryableRequestError)
"""What vLLM's handlers answer with 4xx or 503."""


class RefusalFilter(logging.Filter):
    """Replaces the traceback of a refusal by its reason. It keeps that of a bug."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return True
        reason: BaseException | None = error if isinstance(error, REFUSALS) else find_failure()
        if reason is not None:
            said = record.getMessage()
            text = said if str(reason) in said else f"{said} {reason}"
            record.msg, record.args = " ".join(text.split()), ()
            record.exc_info = record.exc_text = None
        return True


def shorten_refusals() -> None:
    """Shorten what vLLM logs of refusals in this process. Again, this does nothing."""
    for handler in logging.getLogger("vllm").handlers:
        if not any(isinstance(each, RefusalFilter) for each in handler.filters):
            handler.addFilter(RefusalFilter())
