"""vLLM's parsers find in pieces of a text what they find in the whole text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.parser.engine.incremental_lexer import IncrementalLexer
from vllm.reasoning import ReasoningParserManager

from flashedge.engine.vllm.serving import parser_pieces
from tests.unit.answers.test_linear import Words

MARKERS = ("<think>", "</think>", "<tool_call>", "<function=f>", "</function>", "</tool_call>")
PARTS = st.sampled_from([*MARKERS, "<", "<think", "</", ">", "a", "\n", "é "])


def parse(text: str) -> Any:
    request = ChatCompletionRequest(messages=[{"role": "user", "content": "?"}])
    parser = ReasoningParserManager.get_reasoning_parser("qwen3")(Words())
    return parser.extract_reasoning(text, request)


@settings(deadline=None)
@given(st.lists(PARTS, max_size=40).map("".join), st.integers(1, 9))
def test_pieces_change_nothing(text: str, piece: int) -> None:
    whole = parse(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parser_pieces, "PIECE", piece)
        patch.setattr(IncrementalLexer, "feed", parser_pieces.feed_in_pieces)
        assert parse(text) == whole


def test_a_long_text_is_fed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nothing is gained: what the lexer copies is at most one piece."""
    longest = 0
    drain = IncrementalLexer._drain

    def measure(self: IncrementalLexer, **kwargs: Any) -> Any:
        nonlocal longest
        longest = max(longest, len(self.buffer))
        return drain(self, **kwargs)

    monkeypatch.setattr(IncrementalLexer, "feed", parser_pieces.feed_in_pieces)
    monkeypatch.setattr(IncrementalLexer, "_drain", measure)
    assert parse("<think>" * 10_000) == (None, None)
    assert longest <= parser_pieces.PIECE + max(map(len, MARKERS))
