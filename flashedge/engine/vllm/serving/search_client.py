"""The engine client that vLLM's protocol handlers are given for requests that name a search.

Where a handler asks for text, a run starts, and what it finds comes back in the form of an engine's
outputs. So everything around it, such as tool calls, choices, stop strings, streams and usage, is
the handler's own.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from vllm import SamplingParams
from vllm.exceptions import VLLMClientError

from flashedge.engine.request_tags import end_with_request, get_searcher, note_failure
from flashedge.engine.searches import Found, SearchItem, SearchPrompt
from flashedge.engine.vllm.inside.keys import ARGS_KEY, THINKS
from flashedge.engine.vllm.serving.conversation import NOTES_BEGIN, NOTES_END
from flashedge.engine.vllm.serving.guided_json import bound_guidance
from flashedge.engine.vllm.serving.path_outputs import PathOutputs
from flashedge.engine.vllm.serving.tagged_client import TaggedClient, fail_request
from flashedge.errors import FlashEdgeError, RequestError
from flashedge.events import PromptRead
from flashedge.types import Sampling

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput


class SearchClient(TaggedClient):
    """Answers by the search of the HTTP request (`request_tags.get_searcher`)."""

    def _admit(self, choices: int) -> None:
        """Raises QueueFull, DaemonStopping."""
        get_searcher().check_admission()

    def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncGenerator[RequestOutput]:
        """Start the run, then stream it. Raises what `convert_error` returns, and vLLM's own errors
        about the prompt and its parameters."""
        params = sampling_params.clone()
        params.extra_args = {**(params.extra_args or {}), ARGS_KEY: {THINKS: self._thinks}}
        try:
            bound_guidance(params)
            request = self._llm.input_processor.process_inputs(
                request_id, prompt, params, supported_tasks=("generate",)
            )
        except VLLMClientError as error:
            note_failure(RequestError(str(error)))
            raise
        except FlashEdgeError as error:
            raise fail_request(error) from error
        asked = SearchPrompt(
            token_ids=tuple(request.prompt_token_ids or ()),
            sampling=Sampling(
                temperature=params.temperature, top_p=params.top_p, top_k=max(0, params.top_k)
            ),
            max_tokens=params.max_tokens or 1,
            choices=params.n,
            guidance=_pack_guidance(params),
        )
        try:
            found = get_searcher().start(asked)
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
                elif isinstance(item, Found):
                    if has_notes:
                        yield outputs.build_note(NOTES_END)
                    for output in outputs.build_answer(item.paths):
                        yield output
                elif outputs.streams:
                    begin = "" if has_notes else NOTES_BEGIN
                    has_notes = True
                    yield outputs.build_note(begin + item.text)
    except FlashEdgeError as error:
        raise fail_request(error, streams=outputs.streams) from error


def _pack_guidance(params: SamplingParams) -> dict[str, Any] | None:
    """What the text must match, as plain JSON values: the fields of vLLM's
    StructuredOutputsParams that say something."""
    given = params.structured_outputs
    if given is None or given.all_constraints_none():
        return None
    fields = dataclasses.asdict(given)
    kept = {name: v for name, v in fields.items() if not name.startswith("_")}
    return {name: v for name, v in kept.items() if v is not None and v is not False}
