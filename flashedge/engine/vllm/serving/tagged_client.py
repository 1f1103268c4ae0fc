"""The engine client of vLLM's protocol handlers.

All that they ask of the generator passes through `TaggedClient.generate`. It tags the request,
chooses how its tokens are drawn, counts it, and turns our errors into vLLM's, which each handler
puts into its protocol's form.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from vllm import SamplingParams
from vllm.exceptions import (
    GenerationError,
    GracefulHTTPError,
    RetryableRequestError,
    VLLMNotFoundError,
    VLLMValidationError,
)
from vllm.sampling_params import RequestOutputKind

from flashedge import errors
from flashedge.engine.http_requests import (
    PlainRequest,
    PlainRequests,
    RequestTags,
    end_with_request,
    get_request,
)
from flashedge.engine.vllm.inside.keys import (
    ARGS_KEY,
    CLIENT,
    DETERMINISTIC,
    PROGRAM,
    THINKS,
    TOKEN_DRAFTS,
)
from flashedge.engine.vllm.process.restarts import EngineProcess
from flashedge.engine.vllm.serving.guided_json import bound_guidance
from flashedge.engine.vllm.translate import build_end_error, build_refusal, check_passes
from flashedge.types import ThinkTags

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput
    from vllm.v1.engine.async_llm import AsyncLLM


UNTAGGED = frozenset({"add_request", "encode"})
"""The AsyncLLM's other ways to make a request. No handler over the generator uses them."""


class TaggedClient:
    """Stands for one AsyncLLM and has its attributes, except for those in UNTAGGED."""

    def __init__(
        self, llm: AsyncLLM, process: EngineProcess, plain: PlainRequests, pair: str
    ) -> None:
        self._llm = llm
        self._process = process
        self._plain = plain
        self._pair = pair

    def __getattr__(self, name: str) -> Any:
        if name in UNTAGGED:
            raise AttributeError(f"{name} would reach the engine without tags")
        return getattr(self._llm, name)

    @property
    def errored(self) -> bool:
        return self._find_fault() is not None

    @property
    def dead_error(self) -> BaseException:
        return convert_error(self._find_fault() or errors.EngineDead("the engine died"))

    @property
    def _think_tags(self) -> ThinkTags | None:
        """What is around the model's thinking. None if it does not think before it answers."""
        options = self._process.options
        return None if options.reasoning_parser is None else options.think_tags

    def _find_fault(self) -> errors.EngineDead | None:
        try:
            self._process.get_llm()
        except errors.EngineDead as error:
            return error
        return None

    def check_admission(self, n: int = 1, request_id: str | None = None) -> None:
        """Raise what `convert_error` returns if a request with `n` choices is not admitted."""
        try:
            self._admit(n)
        except errors.FlashEdgeError as error:
            raise convert_error(error) from error

    def _admit(self, choices: int) -> None:
        self._plain.check_admission(self._pair, choices)

    def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncGenerator[RequestOutput]:
        """Tag a request and stream its outputs. Raises what `fail_request` returns."""
        tags = get_request().tags  # here: the stream may be read in another context
        program = tags.program or request_id
        tags = replace(tags, program=program)
        try:
            drafts = self._process.options.token_drafts
            params = tag_params(sampling_params, tags, think_tags=self._think_tags, drafts=drafts)
            if tags.deterministic:
                check_passes(self._process.options)
        except errors.FlashEdgeError as error:
            raise fail_request(error) from error
        options["priority"] = tags.priority
        ids = prompt.get("prompt_token_ids") if isinstance(prompt, Mapping) else None
        room = max(1, self._llm.model_config.max_model_len - len(ids or ()))
        ask = PlainRequest(
            program=program,
            pair=self._pair,
            client=tags.client,
            priority=tags.priority,
            choices=params.n,
            prompt_ids=tuple(ids or ()),
            max_tokens=min(params.max_tokens or room, room),
        )
        return end_with_request(self._stream(prompt, params, request_id, ask, options))

    async def _stream(
        self,
        prompt: Any,
        params: SamplingParams,
        request_id: str,
        ask: PlainRequest,
        options: dict[str, Any],
    ) -> AsyncGenerator[RequestOutput]:
        try:
            with (
                self._plain.open(ask, lambda: self._llm.abort(request_id)) as follow,
                self._process.open_request(request_id),
            ):
                is_whole = params.output_kind is RequestOutputKind.FINAL_ONLY and params.n == 1
                if is_whole:
                    # The scheduler of programs has to see how far the request is. With several
                    # choices vLLM joins outputs only if they are final.
                    params = params.clone()
                    params.output_kind = RequestOutputKind.CUMULATIVE
                seen, is_prompt_noted = 0, False
                outputs = self._llm.generate(prompt, params, request_id, **options)
                async with aclosing(outputs) as stream:
                    async for output in stream:
                        parts = output.outputs
                        if any(part.finish_reason == "error" for part in parts):
                            guided = params.structured_outputs is not None
                            raise build_end_error("error", is_guided=guided)
                        is_aborted = any(part.finish_reason == "abort" for part in parts)
                        if self._plain.is_stopping and output.finished and is_aborted:
                            raise errors.DaemonStopping.for_request()
                        tokens = sum(len(part.token_ids) for part in parts)
                        if not is_prompt_noted:
                            is_prompt_noted = bool(output.prompt_token_ids)
                            self._process.note_prompt(
                                len(output.prompt_token_ids or ()), output.num_cached_tokens or 0
                            )
                        finishes = tuple(p.finish_reason for p in parts if p.finish_reason)
                        follow(len(output.prompt_token_ids or ()), tokens - seen, finishes)
                        if is_whole:  # the next output holds these tokens, too
                            seen = tokens
                        if not is_whole or output.finished:
                            yield output
        except errors.FlashEdgeError as error:
            streams = params.output_kind is RequestOutputKind.DELTA
            raise fail_request(error, streams=streams) from error


def fail_request(error: errors.FlashEdgeError, *, streams: bool = False) -> Exception:
    """Keep why the request fails, for the end of its stream, and return vLLM's exception for it. In
    a stream that is a GenerationError, the only one that every protocol's handler reports."""
    get_request().failure = error
    converted = convert_error(error)
    if streams and not isinstance(converted, GenerationError):
        converted = GenerationError(error.line)
        converted.status_code = HTTPStatus(error.http_status)
    return converted


def tag_params(
    given: SamplingParams, tags: RequestTags, *, think_tags: ThinkTags | None, drafts: bool
) -> SamplingParams:
    """Copy the parameters, and add the tags and how tokens are drawn. drafts: whether the engine
    drafts tokens. It draws several in a step by the noise of their positions.

    Requests that are deterministic or have a client's seed get position noise. Others are drawn by
    vLLM's own sampler, which is faster for a whole batch, unless the engine drafts. So are requests
    with penalties or budgets of thinking, which act on logits after the noise; a client's seed goes
    to that sampler. Raises RequestError for a schema that is too large, and for what can't be
    verified.
    """
    params = given.clone()
    bound_guidance(params)
    if tags.deterministic:
        check_verifiable(params)
    ours: dict[str, Any] = {
        PROGRAM: tags.program,
        CLIENT: tags.client,
        DETERMINISTIC: tags.deterministic,
        THINKS: think_tags,
        TOKEN_DRAFTS: drafts,
    }
    is_repeatable = tags.is_seeded or tags.deterministic
    acts_after_noise = (
        params.presence_penalty
        or params.frequency_penalty
        or params.repetition_penalty != 1
        or params.thinking_token_budget is not None
    )
    has_noise = (drafts or (is_repeatable and params.temperature > 0)) and not acts_after_noise
    params.seed = tags.seed if is_repeatable or has_noise else None
    if has_noise:
        ours |= {
            "temperature": params.temperature,
            "top_k": max(0, params.top_k),
            "top_p": params.top_p,
            "min_p": params.min_p,
        }
        # SamplingParams would refuse several choices at temperature 0 if it were built with it.
        params.temperature, params.top_k, params.top_p, params.min_p = 0.0, 0, 1.0, 0.0
    params.extra_args = {**(params.extra_args or {}), ARGS_KEY: ours}
    return params


UNVERIFIABLE = (
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_tokens",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "structured_outputs",
    "thinking_token_budget",
    "prompt_logprobs",
    "prompt_logprob_token_ids",
    "logprob_token_ids",
)
"""The fields of SamplingParams that change logits after the noise, or report other logits."""
_DEFAULTS = SamplingParams()


def check_verifiable(params: SamplingParams) -> None:
    """Raise RequestError if a deterministic request asks for what no pass computes."""
    for name in UNVERIFIABLE:
        if getattr(params, name) not in (getattr(_DEFAULTS, name), None, [], {}):
            raise build_refusal(name)
    if params.logprobs == -1:
        raise build_refusal("the log-probabilities of all tokens")


def convert_error(error: errors.FlashEdgeError) -> Exception:
    """Build the exception of vLLM that its handlers answer with the same HTTP status and text."""
    if isinstance(error, errors.QueueFull | errors.Conflict | errors.StoreError):
        return GracefulHTTPError(error.line, HTTPStatus(error.http_status))
    if isinstance(error, errors.NotFound):
        return VLLMNotFoundError(error.line)
    if isinstance(error, errors.RequestError | errors.ConfigError):
        return VLLMValidationError(error.line, parameter=error.param)
    if error.http_status == HTTPStatus.SERVICE_UNAVAILABLE:
        return RetryableRequestError(error.line)
    return GenerationError(error.line)
