"""vLLM's parsers find in pieces of a text what they find in the whole text."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.parser.engine.incremental_lexer import IncrementalLexer
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager

from flashedge.engine.vllm.serving import twin_parser
from tests.unit.answers.test_linear import print_slowest

MARKERS = ("<think>", "</think>", "<tool_call>", "<function=f>", "</function>", "</tool_call>")
PARTS = st.sampled_from([*MARKERS, "<", "<think", "</", ">", "a", "\n", "é "])
REQUEST = ChatCompletionRequest(messages=[{"role": "user", "content": "?"}])


class Words:
    def get_vocab(self) -> dict[str, int]:
        return {"<think>": 1, "</think>": 2, "<tool_call>": 3, "</tool_call>": 4}


def parse(text: str) -> Any:
    parser = ReasoningParserManager.get_reasoning_parser("qwen3")(Words())
    return parser.extract_reasoning(text, REQUEST)


def parse_tool_calls(text: str) -> Any:
    return ToolParserManager.get_tool_parser("hermes")(Words()).extract_tool_calls(text, REQUEST)


@pytest.mark.long
@pytest.mark.parametrize(("name", "read"), [("qwen3", parse), ("hermes", parse_tool_calls)])
def test_a_megabyte_is_read(name: str, read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `tests/unit/answers/test_linear.py`, by the parsers of the pairs in models.toml, which
    read a plain request's answer in the daemon."""
    monkeypatch.setattr(IncrementalLexer, "feed", twin_parser.feed_in_pieces)
    print_slowest(name, read)


@settings(deadline=None)
@given(st.lists(PARTS, max_size=40).map("".join), st.integers(1, 9))
def test_pieces_change_nothing(text: str, piece: int) -> None:
    whole = parse(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(twin_parser, "PIECE", piece)
        patch.setattr(IncrementalLexer, "feed", twin_parser.feed_in_pieces)
        assert parse(text) == whole


def test_a_long_text_is_fed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    longest = 0
    drain = IncrementalLexer._drain

    def measure(self: IncrementalLexer, **kwargs: Any) -> Any:
        nonlocal longest
        longest = max(longest, len(self.buffer))
        return drain(self, **kwargs)

    monkeypatch.setattr(IncrementalLexer, "feed", twin_parser.feed_in_pieces)
    monkeypatch.setattr(IncrementalLexer, "_drain", measure)
    assert parse("<think>" * 10_000) == (None, None)
    assert longest <= twin_parser.PIECE + max(map(len, MARKERS))
