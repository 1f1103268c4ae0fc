"""A stream and its unstreamed twin say the same, whatever the model writes, and no text is lost."""

import json
import re
from itertools import cycle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.parser import ParserManager

from flashedge.engine.vllm.serving import twin_parser

MARKS = {"<think>": 1, "</think>": 2, "<tool_call>": 3, "</tool_call>": 4}
OTHER = 100
"""Added to a character's code point, its token."""
CALL = '{"name": "f", "arguments": {"a": 1}}'
CALLED = f"<tool_call>{CALL}</tool_call>"
CLOSED = "<think></think>"
PARSERS = [("hermes", ""), ("hermes", "qwen3"), ("hermes", "deepseek_r1"), (None, "qwen3")]
"""Tool and reasoning parsers of the pairs in models.toml."""
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
Said = tuple[str, str, list[tuple[str, str]]]
"""Thinking, text, and names and arguments of calls."""


class Characters:
    def get_vocab(self) -> dict[str, int]:
        return MARKS

    def decode(self, ids: Any) -> str:
        marks = {token: mark for mark, token in MARKS.items()}
        return "".join(marks.get(token) or chr(token - OTHER) for token in ids)


def encode(parts: list[str]) -> list[tuple[str, int]]:
    pieces = [piece for part in parts for piece in ([part] if part in MARKS else part)]
    return [(piece, MARKS.get(piece) or ord(piece) + OTHER) for piece in pieces]


def split_marks(text: str) -> list[str]:
    return [part for part in re.split(f"({'|'.join(MARKS)})", text) if part]


def build_parser(names: tuple[str | None, str], *, by_search: bool = False) -> Any:
    options = {"enable_auto_tools": True, "tool_strict_level": "parameter"}
    twin = twin_parser.build_twin_parser(ParserManager.get_parser(*names, **options))
    kind = twin_parser.build_search_parser(twin) if by_search else twin
    return kind(Characters(), [TOOL], chat_template_kwargs={}, model_config=None)


def build_request(has_tools: bool, **fields: Any) -> ChatCompletionRequest:
    tools = {"tools": [TOOL]} if has_tools else {}
    return ChatCompletionRequest(messages=[{"role": "user", "content": "?"}], **tools, **fields)


def stream(parser: Any, parts: list[str], sizes: list[int], prompt: str, request: Any) -> Said:
    """What a client has of an answer at the end of its stream. sizes: tokens of its pieces."""
    tokens, prompt_ids = encode(parts), [token for _, token in encode(split_marks(prompt))]
    thought = text = ""
    calls: list[tuple[str, str]] = []
    for size in cycle(sizes):
        piece, tokens = tokens[:size], tokens[size:]
        said, ids = "".join(t for t, _ in piece), [token for _, token in piece]
        delta = parser.parse_delta(said, ids, request, prompt_ids, finished=not tokens)
        if delta is not None:
            thought += delta.reasoning or ""
            text += delta.content or ""
            calls += [(c.function.name, c.function.arguments) for c in delta.tool_calls]
        if not tokens:
            break
    return thought, text, calls


def read_whole(parser: Any, parts: list[str], prompt: str, request: Any) -> Said:
    parser.set_prompt_token_ids([token for _, token in encode(split_marks(prompt))])
    ids = [token for _, token in encode(parts)]
    thought, text, calls = parser.parse("".join(parts), request, True, ids)
    return thought or "", text or "", [(c.name, c.arguments) for c in calls or []]


SAID: list[tuple[str, str, list[tuple[str, str]]]] = [
    ("hello", "hello", []),
    (f"before {CALLED}", "before ", [("f", '{"a": 1}')]),
    (f"\n{CALLED}", "", [("f", '{"a": 1}')]),
    (f"<tool_call>{CALL}", "", [("f", '{"a": 1}')]),
    ("before <tool_call>not json", "before <tool_call>not json", []),
    ('<tool_call>{"name": }</tool_call>', '<tool_call>{"name": }</tool_call>', []),
    ("<tool_call>", "<tool_call>", []),
    ("so <tool_c", "so <tool_c", []),
    ('<tool_call>{"name": "f", "argu', '<tool_call>{"name": "f", "argu', []),
    ('<tool_call>{"name": "f"}</tool_call>', '<tool_call>{"name": "f"}</tool_call>', []),
    ('<tool_call>{"arguments": {}, "name": "f"}</tool_call>', "", [("f", "{}")]),
    (f"{CALLED}{CALLED}", "", [("f", '{"a": 1}')] * 2),
    (f"{CALLED}<tool_call>no", f"{CALLED}<tool_call>no", []),
    (" \n", " \n", []),
]
"""An answer, and what of it is text and what are calls."""


@pytest.mark.parametrize("by_search", [False, True], ids=["plain", "search"])
@pytest.mark.parametrize("names", PARSERS[:3], ids=lambda n: "+".join(filter(None, n)))
@pytest.mark.parametrize(("said", "text", "calls"), SAID, ids=lambda v: str(v)[:40])
def test_a_call_is_whole_or_it_is_text(
    said: str, text: str, calls: Any, names: tuple[str, str], by_search: bool
) -> None:
    prompt, parts = CLOSED if names[1] else "", split_marks(said)  # who thinks has thought
    for size in (1, 3, 1000):
        parser = build_parser(names, by_search=by_search)
        found = stream(parser, parts, [size], prompt, build_request(True))
        assert found == ("", text, calls)
    parser = build_parser(names, by_search=by_search)
    assert read_whole(parser, parts, prompt, build_request(True)) == ("", text, calls)


@pytest.mark.parametrize("names", PARSERS[:3], ids=lambda n: "+".join(filter(None, n)))
def test_a_request_without_tools_has_no_calls(names: tuple[str, str]) -> None:
    parts = ["<tool_call>", CALL, "</tool_call>"]
    prompt = CLOSED if names[1] else ""
    for choice in (None, "none"):
        request = build_request(False)
        request.tool_choice = choice  # type: ignore[assignment]
        found = stream(build_parser(names), parts, [1], prompt, request)
        assert found == ("", "".join(parts), [])
        assert read_whole(build_parser(names), parts, prompt, request) == found


@pytest.mark.parametrize("names", PARSERS[1:], ids=lambda n: "+".join(filter(None, n)))
def test_an_answer_that_goes_on_is_no_thinking(names: tuple[str | None, str]) -> None:
    for prompt, found in (
        ("It is", ("", " 7", [])),
        (f"{CLOSED}It is", ("", " 7", [])),
        ("<think>It is", (" 7", "", [])),
    ):
        request = build_request(True, continue_final_message=True, add_generation_prompt=False)
        for sizes in ([1], [9]):
            assert stream(build_parser(names), [" 7"], sizes, prompt, request) == found
        assert read_whole(build_parser(names), [" 7"], prompt, request) == found


WORDS = [*MARKS, CALL, '{"name": "f"', '{"name": }', '{"arguments": {}, "name": "f"}']
WORDS += ["<tool", "<", "}", "hello ", " ", "\n"]
PARTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=8)


@settings(deadline=None, max_examples=200)
@given(
    parts=PARTS,
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    names=st.sampled_from(PARSERS),
    prompt=st.sampled_from(["", "<think>", CLOSED]),
    asked=st.fixed_dictionaries({"has_tools": st.booleans(), "include_reasoning": st.booleans()}),
)
def test_twins_say_the_same(
    parts: list[str], sizes: list[int], names: tuple[str | None, str], prompt: str, asked: Any
) -> None:
    streamed = stream(build_parser(names), parts, sizes, prompt, build_request(**asked))
    assert streamed == read_whole(build_parser(names), parts, prompt, build_request(**asked))
    assert all(json.loads(arguments) is not None for _, arguments in streamed[2])


def test_notes_of_a_search_are_no_part_of_the_answer() -> None:
    parser = build_parser(PARSERS[1], by_search=True)
    request = build_request(True)
    note = parser.parse_delta(twin_parser.NoteText("[1] So.\n"), [], request, [], finished=False)
    assert note.reasoning == "[1] So.\n"
    said = ["<think>", "so", "</think>", "It is <tool"]
    assert stream(parser, said, [2], "", request) == ("so", "It is <tool", [])
