"""Puts a search's paths into the outputs that vLLM's protocol handlers read from an engine.

Each path is decoded anew by vLLM's own detokenizer, token by token, so that stop strings, special
tokens and the parsers of tool calls see what they would see of a generation.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.detokenizer import IncrementalDetokenizer

from flashedge.engine.searches import FoundPath
from flashedge.types import FinishReason

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreRequest


class NoteText(str):
    """The text of an output that is no part of the answer. `search_parser` knows it by its type."""

    __slots__ = ()


class PathOutputs:
    """The outputs of one request for a search."""

    def __init__(self, request: EngineCoreRequest, tokenizer: Any) -> None:
        """request: as vLLM's input processor made it of the handler's prompt and parameters."""
        assert request.sampling_params is not None
        self._request = request
        self._params = request.sampling_params
        self._tokenizer = tokenizer
        self.streams = self._params.output_kind is RequestOutputKind.DELTA
        """Whether the client sees the answer in pieces, and so can see notes before it."""
        self.cached_tokens = 0
        """Of the prompt. Streams report what the first output says."""

    def build_note(self, text: str) -> RequestOutput:
        logprobs: Any = [] if self._params.logprobs is not None else None
        return self._build([CompletionOutput(0, NoteText(text), [], None, logprobs)])

    def build_answer(self, paths: tuple[FoundPath, ...]) -> Iterator[RequestOutput]:
        """Each choice token by token, or all of them at once, as the handler asks for."""
        if self.streams:
            for index, path in enumerate(paths):
                is_last = index == len(paths) - 1
                for part in self._replay(index, path):
                    yield self._build([part], is_last and part.finished())
        else:
            whole = [_join(list(self._replay(i, path))) for i, path in enumerate(paths)]
            yield self._build(whole, True)

    def _build(self, parts: list[CompletionOutput], finished: bool = False) -> RequestOutput:
        ids = self._request.prompt_token_ids
        name, cached = self._request.request_id, self.cached_tokens
        return RequestOutput(name, None, ids, None, parts, finished, num_cached_tokens=cached)

    def _replay(self, index: int, path: FoundPath) -> Iterator[CompletionOutput]:
        """Outputs of one token each. The last one has the finish reason."""
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
