"""The engine client of vLLM's protocol handlers for requests that name a search.

When a handler asks for text, a run starts, and its paths come back as an engine's outputs. So the
handlers do tool calls, choices, stop strings, streams and usage as always. vLLM's detokenizer
decodes each path again, token by token, so that stop strings, special tokens and the parsers of
tool calls see the same as in plain generation.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from vllm import SamplingParams
from vllm.exceptions import VLLMClientError
from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.detokenizer import IncrementalDetokenizer

from flashedge.engine.base import Chunk
from flashedge.engine.http_requests import (
    SearchItem,
    SearchPrompt,
    end_with_request,
    get_request,
    get_searcher,
)
from flashedge.engine.vllm.inside.keys import ARGS_KEY, THINKS
from flashedge.engine.vllm.serving.conversation import NOTES_BEGIN, NOTES_END
from flashedge.engine.vllm.serving.guided_json import bound_guidance
from flashedge.engine.vllm.serving.tagged_client import TaggedClient, fail_request
from flashedge.engine.vllm.serving.twin_parser import NoteText
from flashedge.errors import FlashEdgeError, RequestError
from flashedge.events import PromptRead
from flashedge.types import FinishReason, Sampling

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreRequest


class SearchClient(TaggedClient):
    """Answers by the search of the HTTP request (`get_searcher`)."""

    def _admit(self, choices: int) -> None:
        get_searcher().check_admission()

    def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncGenerator[RequestOutput]:
        """Start the run and stream its outputs. Raises vLLM's own errors about the prompt and its
        parameters. This call and the stream also raise what `fail_request` returns."""
        params = sampling_params.clone()
        params.extra_args = {**(params.extra_args or {}), ARGS_KEY: {THINKS: self._think_tags}}
        try:
            bound_guidance(params)
            request = self._llm.input_processor.process_inputs(
                request_id, prompt, params, supported_tasks=("generate",)
            )
            asked = SearchPrompt(
                token_ids=tuple(request.prompt_token_ids or ()),
                sampling=Sampling(
                    temperature=params.temperature, top_p=params.top_p, top_k=max(0, params.top_k)
                ),
                max_tokens=params.max_tokens or 1,  # every handler sets it
                choices=params.n,
                guidance=_pack_guidance(params),
            )
            found = get_searcher().start(asked)
        except VLLMClientError as error:
            get_request().failure = RequestError(str(error))
            raise
        except FlashEdgeError as error:
            raise fail_request(error) from error
        outputs = PathOutputs(request, self._llm.renderer.tokenizer)
        return end_with_request(_follow(found, outputs))


async def _follow(
    found: AsyncGenerator[SearchItem], outputs: PathOutputs
) -> AsyncGenerator[RequestOutput]:
    has_notes = False
    try:
        async with aclosing(found) as stream:
            async for item in stream:
                if isinstance(item, PromptRead):
                    outputs.cached_tokens = item.cached_tokens
                elif isinstance(item, tuple):
                    if has_notes:
                        yield outputs.build_note(NOTES_END)
                    for output in outputs.build_answer(item):
                        yield output
                elif outputs.streams:
                    begin = "" if has_notes else NOTES_BEGIN
                    has_notes = True
                    yield outputs.build_note(begin + item)
    except FlashEdgeError as error:
        raise fail_request(error, streams=outputs.streams) from error


def _pack_guidance(params: SamplingParams) -> dict[str, Any] | None:
    """Pack what the text must match: the fields of vLLM's StructuredOutputsParams that are set."""
    given = params.structured_outputs
    if given is None or given.all_constraints_none():
        return None
    fields = {name: value for name, value in dataclasses.asdict(given).items() if name[0] != "_"}
    return {n: value for n, value in fields.items() if value is not None and value is not False}


class PathOutputs:
    """Builds an engine's outputs from the paths and notes of a search."""

    def __init__(self, request: EngineCoreRequest, tokenizer: Any) -> None:
        """request: made by vLLM's input processor from the handler's prompt and parameters."""
        assert request.sampling_params is not None
        self._request = request
        self._params = request.sampling_params
        self._tokenizer = tokenizer
        self.streams = self._params.output_kind is RequestOutputKind.DELTA
        """Whether the client sees the answer in pieces, and so can see notes before it."""
        self.cached_tokens = 0
        """Prompt tokens whose KV was reused. Streams report what the first output says."""

    def build_note(self, text: str) -> RequestOutput:
        """Build an output that shows a note and has no tokens."""
        logprobs: Any = [] if self._params.logprobs is not None else None
        return self._build([CompletionOutput(0, NoteText(text), [], None, logprobs)])

    def build_answer(self, paths: tuple[Chunk, ...]) -> Iterator[RequestOutput]:
        """Yield an output for each token, choice by choice, or one output in all if the client
        does not stream. paths: one for each choice."""
        if not self.streams:
            choices = [_join(list(self._replay(index, path))) for index, path in enumerate(paths)]
            yield self._build(choices, finished=True)
            return
        for index, path in enumerate(paths):
            for part in self._replay(index, path):
                yield self._build([part], index == len(paths) - 1 and part.finished())

    def _build(self, parts: list[CompletionOutput], finished: bool = False) -> RequestOutput:
        ids = self._request.prompt_token_ids
        name, cached = self._request.request_id, self.cached_tokens
        return RequestOutput(name, None, ids, None, parts, finished, num_cached_tokens=cached)

    def _replay(self, index: int, path: Chunk) -> Iterator[CompletionOutput]:
        """Yield outputs of one token each. The last one has the finish reason."""
        detokenizer = IncrementalDetokenizer.from_new_request(self._tokenizer, self._request)
        ended = path.finish is FinishReason.STOP
        if not path.token_ids:
            logprobs = self._list_logprobs(())
            yield CompletionOutput(index, "", [], None, logprobs, finish_reason="length")
        for at, (token, logprob) in enumerate(zip(path.token_ids, path.logprobs, strict=True), 1):
            is_last = at == len(path.token_ids)
            stop = detokenizer.update([token], stop_terminated=is_last and ended)
            reason = "stop" if stop is not None or (is_last and ended) else None
            if is_last and reason is None:
                reason = "length"
            yield CompletionOutput(
                index,
                detokenizer.get_next_output_text(reason is not None, delta=True),
                [token],
                None,
                self._list_logprobs(((token, logprob),)),
                finish_reason=reason,
                stop_reason=stop,
            )
            if stop is not None:
                return

    def _list_logprobs(self, drawn: tuple[tuple[int, float], ...]) -> Any:
        if self._params.logprobs is None:
            return None
        return [
            {token: Logprob(logprob, decoded_token=self._tokenizer.decode([token]))}
            for token, logprob in drawn
        ]


def _join(parts: list[CompletionOutput]) -> CompletionOutput:
    """Join the outputs of a choice's tokens."""
    last = parts[-1]
    logprobs = None if last.logprobs is None else [p for part in parts for p in part.logprobs or ()]
    return CompletionOutput(
        last.index,
        "".join(part.text for part in parts),
        [token for part in parts for token in part.token_ids],
        None,
        logprobs,
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
    )
