"""Every exception class that vLLM has is mapped on purpose, and to the right one of ours."""

from __future__ import annotations

import inspect

import pytest
import vllm.exceptions
import vllm.v1.engine.exceptions as engine_exceptions

from flashedge.engine.vllm.translate import translate, translated
from flashedge.errors import EngineDead, GenerationFailed, QueueFull, RequestError

# vLLM 0.32.0. A class that is new in another version fails the test below until it is placed here.
EXPECTED = {
    "EngineDeadError": EngineDead,
    "EngineGenerateError": GenerationFailed,
    "VLLMError": GenerationFailed,
    "VLLMServerError": GenerationFailed,
    "GenerationError": GenerationFailed,
    "RetryableRequestError": GenerationFailed,
    "VLLMClientError": RequestError,
    "VLLMValidationError": RequestError,
    "VLLMNotFoundError": RequestError,
    "LoRAAdapterNotFoundError": RequestError,
    "VLLMUnprocessableEntityError": RequestError,
    "GracefulHTTPError": QueueFull,
    "QueueOverflowError": QueueFull,
    "MaxQueuedTokensError": QueueFull,
    "ProfilerAlreadyActiveError": QueueFull,
}


def vllm_exceptions() -> dict[str, type[Exception]]:
    found = {}
    for module in (vllm.exceptions, engine_exceptions):
        for name, kind in inspect.getmembers(module, inspect.isclass):
            if issubclass(kind, Exception) and kind.__module__ == module.__name__:
                found[name] = kind
    return found


def test_none_is_unmapped() -> None:
    assert set(vllm_exceptions()) == set(EXPECTED)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_each_becomes_what_it_should(name: str) -> None:
    kind = vllm_exceptions()[name]
    # Their constructors differ, and only the class decides.
    bare = type(name, (kind,), {"__init__": lambda _: None, "__str__": lambda _: "said"})
    ours = translate(bare(), "generator")
    assert type(ours) is EXPECTED[name]
    assert "generator" in str(ours)


def test_others_are_failures_of_the_request() -> None:
    with pytest.raises(GenerationFailed, match="ZeroDivisionError"), translated("verifier"):
        raise ZeroDivisionError


def test_ours_pass_unchanged() -> None:
    ours = EngineDead("gone")
    with pytest.raises(EngineDead) as caught, translated("generator"):
        raise ours
    assert caught.value is ours
