"""Lets stop strings count only after a model's thinking.

A chain of thought repeats the words of the question, so a client's stop word would end the answer
before it begins. vLLM looks for stop strings where it decodes tokens, in the daemon. The paths of a
search are decoded the same way. Within the thinking, only stop strings with the tag that ends it
count.

Checked with vLLM 0.32.0.
"""

from typing import Any

from vllm.v1.engine.detokenizer import IncrementalDetokenizer

from flashedge.engine.vllm.inside.keys import THINKS, read_args
from flashedge.types import THINK_TAIL_TOKENS, ThinkTags

_build = IncrementalDetokenizer.from_new_request


def build_detokenizer(tokenizer: Any, request: Any) -> IncrementalDetokenizer:
    """Stand for vLLM's `IncrementalDetokenizer.from_new_request` in the daemon's process."""
    made = _build(tokenizer, request)
    ours = read_args(request.sampling_params)
    if tokenizer is not None and getattr(made, "stop", None) and (tags := ours.get(THINKS)):
        tail = tokenizer.decode((request.prompt_token_ids or [])[-THINK_TAIL_TOKENS:])
        guarded: Any = made
        is_open = tail.rstrip().endswith(tags[0])
        guarded.update = StopGuard(made, tags, is_open=is_open).update
    return made


class StopGuard:
    """Keeps a detokenizer from looking for stop strings until the thinking has ended."""

    def __init__(self, detokenizer: Any, tags: ThinkTags, *, is_open: bool) -> None:
        """is_open: whether the prompt opens the thinking."""
        self._open, self._close = tags
        self._detokenizer = detokenizer
        self._update = detokenizer.update
        self._stops, self._held_chars = detokenizer.stop, detokenizer.stop_buffer_length
        self._is_open = is_open
        self._answer_at: int | None = None
        """Where the answer begins in the text. None within the thinking."""
        detokenizer.stop = [stop for stop in self._stops if self._close in stop]
        self._hold_back()

    def update(self, new_token_ids: list[int], stop_terminated: bool) -> str | None:
        """Decode tokens. Returns the stop string that ends the text, None if none does."""
        found: str | None = None
        for at, token in enumerate(new_token_ids):
            is_end = stop_terminated and at == len(new_token_ids) - 1
            found = self._update([token], is_end)
            if found is None and self._answer_at is None:
                found = self._find_answer()
            if found is not None:
                break
        self._hold_back()
        return found

    def _find_answer(self) -> str | None:
        """Look for the answer, in which stop strings count. Returns the first in it, if any."""
        text: str = self._detokenizer.output_text
        start = text.lstrip()
        self._is_open = self._is_open or start.startswith(self._open)
        if self._is_open:
            _, close, answer = text.partition(self._close)
            self._answer_at = len(text) - len(answer) if close else None
        elif not self._open.startswith(start):
            self._answer_at = 0
        if self._answer_at is None:
            return None
        self._detokenizer.stop = self._stops
        ends = [
            (place + len(stop), place, stop)
            for stop in self._stops
            if (place := text.find(stop, self._answer_at)) >= 0
        ]
        if not ends or self._detokenizer.num_output_tokens() <= self._detokenizer.min_tokens:
            return None
        end, place, stop = min(ends)
        keeps = self._detokenizer.include_stop_str_in_output
        self._detokenizer.output_text = text[: end if keeps else place]
        return stop

    def _hold_back(self) -> None:
        """Hold back text that may begin a stop string, but no mark of the thinking: a parser needs
        each mark in the output that has its token."""
        if not any(self._close in stop for stop in self._stops):
            at, text = self._answer_at, self._detokenizer.output_text
            answer_chars = 0 if at is None else max(0, len(text) - at)
            self._detokenizer.stop_buffer_length = min(self._held_chars, answer_chars)
