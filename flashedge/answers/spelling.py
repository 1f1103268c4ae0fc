r"""One spelling for answers that differ in writing only: `\frac12`, `\dfrac{1}{2}` and `1/2`.

Fractions of integers become a/b, mixed numbers too (`12\frac{3}{5}` is 63/5). Numbers lose leading
and trailing zeros, and words that follow a number are dropped as units.
Ref: the ideas of MATH's `strip_string` (arXiv 2103.03874). Departure: it is idempotent.
"""

from __future__ import annotations

import functools
import re

from flashedge.answers.extraction import find_closing_brace

_MAX_LENGTH = 1000
_ROUNDS = 100

_DROPPED = re.compile(
    r"\\left(?![a-zA-Z])\.?|\\right(?![a-zA-Z])\.?|\\(?:displaystyle|textstyle|limits)(?![a-zA-Z])"
    r"|(?<!\\)\\[,!;:>]|\\q?quad(?![a-zA-Z])|\^\s*\{?\s*\\circ\s*\}?|\\(?:circ|degree)(?![a-zA-Z])|°"
    r"|\\?%|\\\$"
)
_WRAPPED = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mbox|operatorname)\s*\{")
_FRAC_NAME = re.compile(r"\\[dtc]frac(?![a-zA-Z])")
_SHORT_FRAC = re.compile(r"\\frac\s*(?:(\d)\s*(\d)|(\d)\s*\{([^{}]*)\}|\{([^{}]*)\}\s*(\d))")
_SHORT_SQRT = re.compile(r"\\sqrt\s*(\d)")
_INT_FRAC = re.compile(
    r"(?<![\w.})^])(-?)\\frac\s*\{\s*([+-]?\d+)\s*\}\s*\{\s*(\d+)\s*\}(?!\s*[\w.({\\^!])"
)
_MIXED = re.compile(
    r"(?:^|(?<=[(\[,]))\s*(-?)\s*(\d+)"  # sign and whole part, alone or in a list
    r"(?:\s*\\frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}|\s+(\d+)\s*/\s*(\d+))"
    r"(?=\s*(?:$|[,)\]])|\s+[^\W\d_]{2,}(?:\s[^\W\d_]+)*(?:\^\{?\d\}?)?$)"  # end, or a unit
)
_NAMED = re.compile(r"[a-zA-Z](?:_?\{?\w\}?)?(?:\(\w\))?\s*=\s*(?=[^=]+\Z)")
_BRACKET = re.compile(r"[(\[]|\\\{")
_THOUSANDS = re.compile(r"(?<![\w.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_SPACED_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\s?\d{3})+(?:\.\d*)?")
_NUMBER = re.compile(r"(?<![\w.:])\+?(-?)(\d++)(?:\.(\d*+))?(?![\w.])")
_POINT = re.compile(r"(?<![\w.])\.(?=\d)")
_UNIT_TEXT = re.compile(r"(?<=[\d})])\s*\\(?:text|mathrm|mbox)\s*\{[^{}]*\}(?:\^\s*\{?\d\}?)?$")
_UNITS = re.compile(
    r"(-?\d[\d.,/]*)(?: ?(?:cm|mm|km|kg|mg|ft|lb|oz|hr|mi|ml|mL|am|pm|AM|PM)| [^\W\d_]{3,})"
    r"(?: [^\W\d_]+)*(?:\^\{?\d\}?)?"
)
_NOT_UNITS = re.compile(
    r"\b(?:and|mod|sin|cos|tan|cot|sec|csc|log|exp|sqrt|min|max|gcd|lcm|not|million|billion"
    r"|thousand|hundred|trillion|dozen|half|halves|thirds?|quarters?|percent)\b"
)
_ESCAPED_SPACE = re.compile(r"(?<!\\)\\ ")
_SPACED = re.compile(r"(?<=[^\w\s])\s+|\s+(?=[^\w\s])|(?<=\d)\s+(?=[a-zA-Z](?![a-zA-Z]))")
_PHRASE = re.compile(r"[^\W\d_]{2,}(?: [^\W\d_]+)*")


@functools.lru_cache(maxsize=4096)
def normalize(answer: str) -> str:
    """The normal form of an answer. Idempotent; never raises; may be empty.

    An answer of more than 1,000 characters is compared as it is: some of the patterns here look
    ahead, so that their work grows faster than the text.
    """
    text = answer.strip()
    if len(text) > _MAX_LENGTH:
        return text
    for _ in range(_ROUNDS):
        before, text = text, _normalize_once(text)
        if text == before:
            break
    return text


def _normalize_once(text: str) -> str:
    text = _ESCAPED_SPACE.sub(" ", text.replace("−", "-").replace("~", " "))
    text = " ".join(text.split())
    text = _unwrap(text).rstrip(".").removeprefix("$").strip()
    text = text.replace("{,}", ",")
    text = _DROPPED.sub("", text)
    text = _strip_text_commands(_UNIT_TEXT.sub("", text))
    text = _FRAC_NAME.sub(lambda _: r"\frac", text)
    text = _SHORT_FRAC.sub(_brace_fraction, text)
    text = _INT_FRAC.sub(_slash_fraction, text)
    text = _SHORT_SQRT.sub(r"\\sqrt{\1}", text)
    named = _NAMED.match(text)
    if named:
        text = text[named.end() :]
    if _SPACED_THOUSANDS.fullmatch(text):
        text = text.replace(" ", "")
    if not _BRACKET.search(text):
        text = _THOUSANDS.sub(lambda m: m[0].replace(",", ""), text)
    text = _NUMBER.sub(_trim_number, _POINT.sub("0.", text))
    text = _MIXED.sub(_add_mixed, text)
    text = "0" if text == "-0" else text
    if not _NOT_UNITS.search(text):
        units = _UNITS.fullmatch(text)
        text = units[1] if units else text
    text = _SPACED.sub("", text)
    return text.lower() if _PHRASE.fullmatch(text) else text.strip()


def _unwrap(text: str) -> str:
    """Drop math delimiters, or braces, around the whole text."""
    while text.startswith("{") and find_closing_brace(text, 1) == len(text) - 1:
        text = text[1:-1].strip()
    for left, right in _WRAPPED:
        inner = text[len(left) : -len(right)]
        long_enough = len(text) > len(left) + len(right)
        if long_enough and text.startswith(left) and text.endswith(right) and left not in inner:
            return inner.strip()
    return text


def _strip_text_commands(text: str) -> str:
    r"""Replace `\text{...}` and similar commands by their contents."""
    while (match := _TEXT.search(text)) is not None:
        end = find_closing_brace(text, match.end())
        if end is None:
            break
        text = f"{text[: match.start()]}{text[match.end() : end]}{text[end + 1 :]}"
    return text


def _brace_fraction(match: re.Match[str]) -> str:
    over, under = (part for part in match.groups() if part is not None)
    return f"\\frac{{{over}}}{{{under}}}"


def _slash_fraction(match: re.Match[str]) -> str:
    sign, over, under = match.groups()
    negative = (sign == "-") != over.startswith("-")
    return f"{'-' if negative else ''}{over.lstrip('+-')}/{under}"


def _add_mixed(match: re.Match[str]) -> str:
    r"""Write a mixed number as one fraction. 2\frac{5}{3} stays: it may be a product."""
    sign, whole, *parts = match.groups()
    over, under = (int(part) for part in parts if part is not None)
    if not 0 < over < under:
        return match[0]
    return f"{sign}{int(whole) * under + over}/{under}"


def _trim_number(match: re.Match[str]) -> str:
    """Drop the plus sign, leading zeros, and zeros at the end of the decimals."""
    sign, whole, decimals = match.groups()
    whole, decimals = whole.lstrip("0") or "0", (decimals or "").rstrip("0")
    return f"{sign}{whole}.{decimals}" if decimals else f"{sign}{whole}"
