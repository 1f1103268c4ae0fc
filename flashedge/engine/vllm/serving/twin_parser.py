"""Makes vLLM's parsers read a streamed answer and a whole one as the same thinking, text and calls.

In a stream vLLM's parsers guess from the beginning of a tool call what it will be, and lose the
text of a call that is cut, broken, or only begins. What has been sent can't be taken back. So a
stream sends thinking and text as they come and holds calls back. At its end the whole text is read
once more, and the stream sends what is missing; if the two readings differ, what was sent stays. A
whole answer is read as a stream of one piece. A search's notes come first, as reasoning.

Checked with vLLM 0.32.0.
"""

import re
import uuid
from collections.abc import Iterator
from typing import Any

from vllm.entrypoints.generate.base.protocol import DeltaMessage
from vllm.parser.abstract_parser import DelegatingParser, Parser
from vllm.parser.engine.incremental_lexer import IncrementalLexer, LexToken

PIECE = 4096
"""Characters that vLLM's lexer gets at once. It cuts each marker off the front of the text, which
copies the rest: a megabyte of `<think>` took nearly a minute on the daemon's event loop. The lexer
is made for streams, so pieces give the same tokens."""
_feed = IncrementalLexer.feed
_Read = tuple[str, str, list[Any]]
"""Thinking, text and calls."""


def build_twin_parser(base: type[Parser]) -> type[Parser]:
    """Build the parser class that replaces `base` in a handler."""

    class TwinParser(base):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._make = lambda kind: kind(*args, **options)
            self._marks: dict[int, str] = {}
            """The marks around the thinking, by their token ids."""
            if (parser := self.reasoning_parser) is not None:
                marks = (parser.reasoning_start_str, parser.reasoning_end_str)
                self._marks = {parser.vocab[mark]: mark for mark in marks if mark in parser.vocab}
            self._prompt_ids: list[int] = []
            self._texts: list[str] = []
            self._ids: list[int] = []
            self._sent = ["", ""]
            """The thinking and the text that the client has."""
            self._blank = ""
            """Blanks before the first word. They are dropped if a call follows."""

        def set_prompt_token_ids(self, prompt_token_ids: Any) -> None:
            self._prompt_ids = list(prompt_token_ids)
            super().set_prompt_token_ids(prompt_token_ids)

        def parse(
            self,
            model_output: str,
            request: Any,
            enable_auto_tools: bool = False,
            model_output_token_ids: Any = (),
        ) -> tuple[str | None, str | None, Any]:
            ids, other = list(model_output_token_ids), self._make(type(self))
            thought, text, calls = other.read(
                model_output, ids, request, self._prompt_ids, finished=True
            )
            has_text = bool(text) or not (thought or calls)
            return thought or None, text if has_text else None, calls or None

        def parse_delta(
            self,
            delta_text: str,
            delta_token_ids: Any,
            request: Any,
            prompt_token_ids: Any = None,
            *,
            finished: bool,
        ) -> DeltaMessage | None:
            found = self.read(
                delta_text, list(delta_token_ids), request, prompt_token_ids, finished=finished
            )
            return _build_delta(*found)

        def read(
            self, text: str, ids: list[int], request: Any, prompt_ids: Any, *, finished: bool
        ) -> _Read:
            """Read the next piece of the answer. Returns what the client has to get now."""
            if not request.tools:
                request.tool_choice = "none"  # though the text may look like a call
            if not self._texts and self._prompt_ends_thinking(request, prompt_ids):
                self._reasoning_parser = None
            self._texts.append(text)
            self._ids += ids
            thought, content = "", self._blank
            pieces = list(_split(text, ids, self._marks))
            for at, (piece, piece_ids) in enumerate(pieces, 1):
                is_last = finished and at == len(pieces)
                delta = super().parse_delta(piece, piece_ids, request, prompt_ids, finished=is_last)
                if delta is not None:
                    thought += delta.reasoning or ""
                    content += delta.content or ""
            if finished:
                return self._end(request, prompt_ids, thought, content)
            self._blank = "" if self._sent[1] or content.strip() else content
            content = content.removeprefix(self._blank)
            self._sent = [self._sent[0] + thought, self._sent[1] + content]
            return thought, content, []

        def _end(self, request: Any, prompt_ids: Any, thought: str, content: str) -> _Read:
            """Read the whole answer and return its rest. thought, content: the rest as streamed."""
            other = self._make(base)
            other.set_prompt_token_ids(prompt_ids or [])
            if self.reasoning_parser is None:
                other._reasoning_parser = None
            has_tools = self.tool_parser_cls is not None
            found = other.parse("".join(self._texts), request, has_tools, self._ids)
            whole_thought = (found[0] or "") if request.include_reasoning else ""
            more = content if (self._sent[1] + content).strip() else ""
            return (
                _complete(self._sent[0], thought, whole_thought),
                _complete(self._sent[1], more, found[1] or ""),
                found[2] or [],
            )

        def _prompt_ends_thinking(self, request: Any, prompt_ids: list[int] | None) -> bool:
            """Whether the prompt has ended the thinking, so that the answer follows."""
            if self.reasoning_parser is None or prompt_ids is None:
                return False
            if self.is_reasoning_end(prompt_ids):
                return True
            if not getattr(request, "continue_final_message", False):
                return False
            last = next((token for token in reversed(prompt_ids) if token in self._marks), None)
            return last is None or self._marks[last] == self.reasoning_parser.reasoning_end_str

    return TwinParser


def _split(text: str, ids: list[int], marks: dict[int, str]) -> Iterator[tuple[str, list[int]]]:
    """Cut a piece of an answer at each mark of the thinking. vLLM's parsers read several marks in
    one piece differently from marks that come one after the other."""
    at = [place for place, token in enumerate(ids) if token in marks]
    texts = re.split(f"({'|'.join(map(re.escape, marks.values()))})", text) if at else [text]
    if [marks[ids[place]] for place in at] != texts[1::2]:
        yield text, ids
        return
    start = 0
    for mark, place in enumerate(at):
        if texts[2 * mark] or place > start:
            yield texts[2 * mark], ids[start:place]
        yield texts[2 * mark + 1], [ids[place]]
        start = place + 1
    if texts[-1] or ids[start:] or not at:
        yield texts[-1], ids[start:]


def _complete(sent: str, more: str, whole: str) -> str:
    """Return what is left to send. more: the rest as streamed. whole: the second reading."""
    return whole.removeprefix(sent) if whole.startswith(sent + more) else more


def _build_delta(thought: str, content: str, calls: list[Any]) -> DeltaMessage | None:
    told = [
        {
            "index": index,
            "id": call.id or f"chatcmpl-tool-{uuid.uuid4().hex[:16]}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for index, call in enumerate(calls)
    ]
    parts: dict[str, Any] = {"reasoning": thought, "content": content, "tool_calls": told}
    said = {name: part for name, part in parts.items() if part}
    return DeltaMessage(**said) if said else None


class NoteText(str):
    """The text of a note of a search. `SearchParser` recognizes it by its type."""

    __slots__ = ()


def build_search_parser(base: type[Parser] | None) -> type[Parser]:
    """Build the parser class of a handler that answers by searches. base: its own, if any."""

    class SearchParser(base or DelegatingParser):  # type: ignore[misc]
        def parse_delta(
            self, delta_text: str, delta_token_ids: Any, request: Any, *args: Any, **options: Any
        ) -> DeltaMessage | None:
            if isinstance(delta_text, NoteText):
                shown = getattr(request, "include_reasoning", True)
                return DeltaMessage(reasoning=str(delta_text)) if shown else None
            delta: DeltaMessage | None = super().parse_delta(
                delta_text, delta_token_ids, request, *args, **options
            )
            return delta

    return SearchParser


def feed_in_pieces(
    self: IncrementalLexer, text: str, token_texts: tuple[str, ...] = (), token_count: int = 0
) -> list[LexToken]:
    """Stand for vLLM's `IncrementalLexer.feed` in the daemon's process."""
    if len(text) <= PIECE or token_texts:
        return _feed(self, text, token_texts, token_count)
    found = _feed(self, text[:PIECE], (), token_count)
    for start in range(PIECE, len(text), PIECE):
        found += _feed(self, text[start : start + PIECE])
    return found
