"""Show text from outside literally, so that no character of it acts on a terminal.

Problems, answers, names and messages come from models, tools and users. A terminal obeys control
characters in them: they rename its window, fill its clipboard, or move what it draws. Each is shown
as one visible character instead, so that a text keeps its length.
"""

import codecs
import html
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

HALVES = range(0xD800, 0xE000)
"""Halves of surrogate pairs, which no encoding of Unicode can hold alone."""

_KEPT = "\t\n"
_CONTROLS = (*range(0x20), 0x7F, *range(0x80, 0xA0))
_LINE_ENDS = (0x85, 0x2028, 0x2029)
_JOINER = "\u200d"
_LONE_JOINER = re.compile(f"(?<!\\S){_JOINER}|{_JOINER}(?!\\S)")
"""A joiner beside a blank or an end. rich joins a blank to it, so that lines get too long."""
_DIRECTIONS = (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Characters that change the direction of the text around them."""


def _build_table() -> Mapping[int, str]:
    """Map code points to what is shown: a picture in Unicode, `␤` for line ends, or `�`."""
    shown = dict.fromkeys((*_CONTROLS, *_DIRECTIONS, *HALVES), "�")
    shown |= {code: chr(0x2400 + code) for code in range(0x20)}
    shown |= {0x7F: "␡"} | dict.fromkeys(_LINE_ENDS, "␤")
    return {code: picture for code, picture in shown.items() if chr(code) not in _KEPT}


def _compile(codes: Iterable[int]) -> re.Pattern[str]:
    return re.compile("[" + "".join(f"\\u{code:04x}" for code in codes) + "]")


_SHOWN = _build_table()
ACTING = frozenset(_SHOWN)
"""The code points of the characters that act on a terminal or on the text around them."""

_ACTS = _compile(_SHOWN)
_HALF = _compile(HALVES)
_JSON_ESCAPES = {code: f"\\u{code:04x}" for code in _SHOWN}


def show_literally(text: str) -> str:
    """The text with every character that acts made visible: `␛` for ESC. Newlines and tabs stay."""
    if _JOINER in text:
        text = _LONE_JOINER.sub("�", text)
    if _ACTS.search(text) is None:
        return text
    return join_surrogates(text).translate(_SHOWN)


def show_in_line(text: str) -> str:
    """Show the text literally in one line: each run of newlines, tabs and blanks becomes one blank.
    Joiners go, since rich would join one at the end of a line to the blanks that fill the line."""
    return " ".join(show_literally(text).replace(_JOINER, "").split())


def escape_page(text: str) -> str:
    """The text for a page of HTML or SVG, where XML forbids control characters."""
    return html.escape(show_literally(text))


def join_surrogates(text: str) -> str:
    """The text with surrogate pairs joined, and `�` for each half that is alone: valid Unicode."""
    if _HALF.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class PieceJoiner:
    """Joins the surrogate pairs that a streamed text splits between two pieces."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-16-le")("replace")

    def join(self, piece: str) -> str:
        """What can be shown by now. Half a pair at the end of the piece waits for the other."""
        return self._decoder.decode(piece.encode("utf-16-le", "surrogatepass"))

    def end(self) -> str:
        """What is left when no piece follows."""
        return self._decoder.decode(b"", final=True)


def format_json(value: Any, indent: int | None = None) -> str:
    """The value as JSON in which characters that act on a terminal are escaped."""
    return json.dumps(value, indent=indent, ensure_ascii=False).translate(_JSON_ESCAPES)
