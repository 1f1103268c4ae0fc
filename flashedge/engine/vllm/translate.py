"""Turns vLLM's exceptions, and its reasons to end a request, into those of `flashedge.errors`."""

from collections.abc import Iterator
from contextlib import contextmanager

from flashedge.engine.vllm.engine_options import EngineOptions
from flashedge.errors import EngineDead, FlashEdgeError, GenerationFailed, QueueFull, RequestError


@contextmanager
def translate_errors(engine: str) -> Iterator[None]:
    """Apply `translate` to what vLLM raises inside the block."""
    try:
        yield
    except FlashEdgeError:
        raise
    except Exception as error:
        raise translate(error, engine) from error


def translate(error: Exception, engine: str) -> FlashEdgeError:
    """Turn vLLM's error into EngineDead, QueueFull, RequestError or GenerationFailed. An unknown
    class becomes GenerationFailed; a test fails for classes of vLLM that are unknown."""
    from vllm.exceptions import GracefulHTTPError, VLLMClientError
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

    if isinstance(error, EngineDeadError):
        return EngineDead(f"the {engine} engine died", hint="it is being restarted; try again")
    if isinstance(error, EngineGenerateError):
        return GenerationFailed(f"the {engine} engine failed on this request: {error.__cause__}")
    if isinstance(error, GracefulHTTPError):
        return QueueFull(f"the {engine} engine accepts no more requests: {error}")
    if isinstance(error, VLLMClientError | ValueError):
        return RequestError(f"the {engine} engine refuses the request: {error}")
    return GenerationFailed(f"the {engine} engine: {type(error).__name__}: {error}")


def build_end_error(reason: str | None, *, is_guided: bool) -> FlashEdgeError:
    """Build the error of a generator's request that vLLM ended early. Its `reason` is "error" for a
    grammar that no text fits, such as one that only refers to itself."""
    if is_guided and reason == "error":
        return RequestError(
            "no further text fits the schema or grammar of the request",
            hint="check that there is a text which fits it",
        )
    return GenerationFailed(f"the generator engine ended a request with {reason!r}")


def explain_no_passes(options: EngineOptions) -> tuple[str, str] | None:
    """Say why an engine with these options computes no deterministic requests, with a hint. None if
    it does. The self-test reports it too."""
    hint = "leave out deterministic"
    if options.bounded is not None:
        told = (
            f"the {options.name} has layers with a sliding window or a recurrent state, which can't"
            " go back to an earlier token"
        )
        return told, hint
    if options.second_runner:
        told = "vLLM's second model runner computes no passes (feature second_runner)"
        return told, f"switch the feature second_runner off, or {hint}"
    return explain_spread_sums(options)


def explain_spread_sums(options: EngineOptions) -> tuple[str, str] | None:
    """Say why an engine on several cards does not give the same bits, with a hint. NCCL adds the
    cards' sums in an order that follows their size and place. None if it gives them.

    Ref: arXiv 2601.17768 §4.4.
    """
    if options.cards == 1 or options.batch_invariant:
        return None
    told = (
        f"the {options.name} is spread over {options.cards} cards (setting devices), whose sums are"
        " added in no fixed order"
    )
    return told, "set batch_invariant to true, give it one card, or leave out deterministic"


def check_passes(options: EngineOptions) -> None:
    """Raise RequestError if an engine with these options computes no deterministic requests."""
    if found := explain_no_passes(options):
        why, hint = found
        raise RequestError(
            f"the request can't be deterministic: {why}", hint=hint, param="deterministic"
        )


def build_refusal(what: str) -> RequestError:
    """Build the error of a deterministic request for `what`, which can't be verified."""
    return RequestError(
        f"a deterministic request can't have {what}",
        hint="leave one of the two out",
        param="deterministic",
    )
