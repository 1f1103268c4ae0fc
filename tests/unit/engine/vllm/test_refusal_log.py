"""A refusal is logged on one line, a bug with its traceback."""

from __future__ import annotations

import logging

import pytest
from vllm.exceptions import GracefulHTTPError, VLLMValidationError

from flashedge.engine.http_requests import RequestTags, note_failure, tag_requests
from flashedge.engine.vllm.serving.protocols import RefusalFilter, shorten_refusals
from flashedge.errors import RequestError


def log(error: Exception, message: str = "Error in create_messages: %s") -> str:
    """What a handler with the filter writes of an exception that vLLM logs."""
    logger = logging.getLogger("tests.refusals")
    try:
        raise error
    except Exception as caught:
        args = (caught,) if "%s" in message else ()
        record = logger.makeRecord(
            logger.name, logging.ERROR, __file__, 1, message, args, (type(caught), caught, None)
        )
    assert RefusalFilter().filter(record)
    return logging.Formatter().format(record)


@pytest.mark.parametrize(
    "error",
    [GracefulHTTPError("4 runs wait", 503), VLLMValidationError("too long\nby 3 tokens")],
)
def test_a_refusal_is_one_line(error: Exception) -> None:
    words = " ".join(str(error).split())
    assert log(error) == f"Error in create_messages: {words}"
    assert log(error, "Error in a stream.") == f"Error in a stream. {words}"


async def test_an_error_that_follows_from_a_refusal_is_one_line() -> None:
    async with tag_requests(RequestTags(client="c", seed=1)):
        note_failure(RequestError("no such schema"))
        assert log(ValueError("2 validation errors"), "Error.") == "Error. no such schema"


async def test_a_bug_keeps_its_traceback() -> None:
    assert "KeyError: 3" in log(KeyError(3))
    async with tag_requests(RequestTags(client="c", seed=1)):
        assert "KeyError: 3" in log(KeyError(3))


def test_the_filter_is_added_once(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = logging.NullHandler()
    monkeypatch.setattr(logging.getLogger("vllm"), "handlers", [handler])
    shorten_refusals()
    shorten_refusals()
    assert len(handler.filters) == 1
