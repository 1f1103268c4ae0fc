"""Every exception class of vLLM is translated on purpose, and to the right one of ours."""

import inspect

import pytest
import vllm.exceptions
import vllm.v1.engine.exceptions as engine_exceptions

from flashedge.engine.vllm.translate import translate, translate_errors
from flashedge.errors import EngineDead, FlashEdgeError, GenerationFailed, QueueFull, RequestError

# vLLM 0.32.0. A class that another version adds fails the test below until it is listed here.
LISTED: dict[type[FlashEdgeError], str] = {
    EngineDead: "EngineDeadError",
    GenerationFailed: "EngineGenerateError VLLMError VLLMServerError GenerationError"
    " RetryableRequestError",
    RequestError: "VLLMClientError VLLMValidationError VLLMNotFoundError LoRAAdapterNotFoundError"
    " VLLMUnprocessableEntityError",
    QueueFull: "GracefulHTTPError QueueOverflowError MaxQueuedTokensError"
    " ProfilerAlreadyActiveError",
}
EXPECTED = {name: ours for ours, names in LISTED.items() for name in names.split()}


def test_every_exception_of_vllm_is_translated_as_listed() -> None:
    found = {}
    for module in (vllm.exceptions, engine_exceptions):
        for name, kind in inspect.getmembers(module, inspect.isclass):
            if issubclass(kind, Exception) and kind.__module__ == module.__name__:
                # Their constructors differ, and only the class decides.
                bare = type(name, (kind,), {"__init__": lambda _: None, "__str__": lambda _: "why"})
                ours = translate(bare(), "generator")
                assert "generator" in str(ours), name
                found[name] = type(ours)
    assert found == EXPECTED


def test_an_unknown_exception_is_a_failure_of_its_request_and_our_own_pass_unchanged() -> None:
    with pytest.raises(GenerationFailed, match="ZeroDivisionError"), translate_errors("verifier"):
        raise ZeroDivisionError
    ours = EngineDead("gone")
    with pytest.raises(EngineDead) as caught, translate_errors("generator"):
        raise ours
    assert caught.value is ours
