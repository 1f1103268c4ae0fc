"""Texts that act where they are shown: on a terminal, as markup, or on the text around them."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

HARMLESS = "plain words"

HOSTILE = (
    "\x1b]0;OWNED\x07 \x1b[5;41mred\x1b[2J\x1b[1;1H",
    "\x1b]52;c;b3duZWQ=\x07 \x1bP+q\x1b\\ \x1b[?1049h",
    "back\b\b\b\rover\x0b\x0c\x00\x7f",
    "\x9b31m \x9d0;OWNED\x9c \x85next",
    "\u202eright to left\u202c \u2066x\u2069 \u200e\u200f\u061c",
    "line\u2028separator\u2029here",
    "half \ud83d and \udc9c alone, \ud83d\ude00 split",
    "[/",
    "[a=1,b=2]",
    "[@click=app.quit]5[/]",
    "[link=http://x]y[/link] [bold red]z [/nope] \\[",
    ":smile: :warning:",
    "e" + "\u0301" * 40 + " 👩\u200d🔬 漢字",
    "one\ntwo\tthree\n\n" + "w" * 500,
    "$\\frac{1}{$ 100% {0} {task.x} %s",
)

FIXED = frozenset({"id", "type", "status", "finish", "finish_reason", "role", "object"})
"""Fields whose values are names of ours, which a client compares."""

_SEQUENCE = re.compile(r"\r?\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)|\r", re.S)
"""What a terminal obeys. rich returns the carriage before it erases a line."""

_DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
_MARKS = "\u200e\u200f\u061c"

acting_texts = st.lists(
    st.sampled_from(HOSTILE) | st.text(max_size=20) | st.characters(categories=["Cc", "Cf", "Cs"]),
    min_size=1,
    max_size=4,
).map("".join)


def poison(value: Any, text: str, fixed: frozenset[str] = FIXED) -> Any:
    """The JSON value with `text` behind each of its strings, but those of `fixed` fields."""
    match value:
        case str():
            return value + text
        case Mapping():
            return {k: v if k in fixed else poison(v, text, fixed) for k, v in value.items()}
        case Sequence():
            return [poison(item, text, fixed) for item in value]
    return value


def find_acting(text: str, kept: str = "\t\n") -> set[str]:
    """The characters of a text that act. It asks Unicode's tables, not ours."""
    return {c for c in text if c not in kept and _acts(c)}


def _acts(character: str) -> bool:
    return (
        unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")
        or unicodedata.bidirectional(character) in _DIRECTIONS
        or character in _MARKS
    )


def find_sequences(screen: str) -> set[str]:
    return set(_SEQUENCE.findall(screen))


def strip_sequences(screen: str) -> str:
    return _SEQUENCE.sub("", screen)
