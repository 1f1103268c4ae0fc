"""Text from outside as text."""

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from flashedge import literal
from flashedge.console import LiteralConsole
from flashedge.literal import join_surrogates, show_literally
from tests.support.hostile import acting_texts, find_acting
from tests.support.screen import open_screen

EVERY_CHARACTER = "".join(map(chr, range(sys.maxunicode + 1)))


def test_characters_that_act_are_shown_and_all_others_stay() -> None:
    assert not find_acting(show_literally(EVERY_CHARACTER))
    kept = "".join(c for c in EVERY_CHARACTER if not find_acting(c))
    assert show_literally(kept) == kept


def test_the_visible_forms() -> None:
    shown = {"\x1b]0;x\x07": "␛]0;x␇", "a\rb\x00\x7f": "a␍b␀␡", "\x9b31m\x85": "�31m␤"}
    shown |= {"\u202ex\u2066\u200f": "�x��", "a\u2028b": "a␤b", "\ud83d!": "�!"}
    shown |= {"\ud83d\ude00": "😀", "two\nlines\tand": "two\nlines\tand"}
    shown |= {"[/] :smile: \\[x]": "[/] :smile: \\[x]"}
    assert {text: show_literally(text) for text in shown} == shown


@given(acting_texts)
def test_it_is_idempotent_keeps_the_length_and_in_a_line_ends_none(text: str) -> None:
    shown = show_literally(text)
    assert show_literally(shown) == shown
    assert len(shown) == len(join_surrogates(text))
    in_line = literal.show_in_line(text)
    assert not find_acting(in_line, kept="")
    assert len(in_line.splitlines()) <= 1


@given(st.text(alphabet=st.characters(categories=["L", "Cs", "Cc"])), st.data())
def test_a_text_in_pieces_is_the_same_text(text: str, data: st.DataObject) -> None:
    at = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    joiner = literal.PieceJoiner()
    pieces = [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)]
    joined = "".join([*map(joiner.join, pieces), joiner.end()])
    assert joined == join_surrogates(text)
    joined.encode()


@given(st.recursive(acting_texts, lambda parts: st.dictionaries(acting_texts, parts, max_size=3)))
def test_json_is_the_same_data_and_acts_on_nothing(value: object) -> None:
    text = literal.format_json(value, indent=2)
    text.encode()
    assert not find_acting(text)
    assert json.loads(text) == json.loads(json.dumps(value))


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("[bold]x[/] :smile: [/ 1.5 'a' http://x", "[bold]x[/] :smile: [/ 1.5 'a' http://x\n"),
        (Text("\x1b" * 50), "␛" * 40 + "\n" + "␛" * 10 + "\n"),
    ],
    ids=["no markup and no emoji codes", "the width of a visible character counts"],
)
def test_what_a_console_prints(monkeypatch: pytest.MonkeyPatch, text: Any, printed: str) -> None:
    screen = open_screen(monkeypatch, columns=40)
    LiteralConsole().print(text)
    assert screen.printed == printed
