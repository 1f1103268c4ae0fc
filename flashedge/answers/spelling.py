r"""One spelling for answers that differ in writing only: `\frac12`, `\dfrac{1}{2}` and `1/2`.

Ref: the ideas of MATH's `strip_string` (arXiv 2103.03874); departures: idempotent, fractions of
integers become a/b, numbers lose leading and trailing zeros, words that follow a number are units.
"""

from __future__ import annotations

import re

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
_NAMED = re.compile(r"[a-zA-Z](?:_?\{?\w\}?)?(?:\(\w\))?\s*=\s*(?=[^=]+\Z)")
_BRACKET = re.compile(r"[(\[]|\\\{")
_THOUSANDS = re.compile(r"(?<![\w.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_SPACED_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\s?\d{3})+(?:\.\d*)?")
_NUMBER = re.compile(r"(?<![\w.:])\+?(-?)0*(\d+)(?:\.(\d*?)0*)?(?![\w.])")
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


def normalize(answer: str) -> str:
    """The normal form of an answer. Idempotent; never raises; may be empty."""
    text = answer.strip()
    if len(text) > _MAX_LENGTH:
        return text
    for _ in range(_ROUNDS):
        before, text = text, _once(text)
        if text == before:
            break
    return text


def unbraced_end(text: str, start: int) -> int | None:
    r"""Index of the brace that closes the one before `start`; `\{` and `\}` don't count."""
    depth, at = 1, start
    while at < len(text):
        if text[at] == "\\":
            at += 1
        elif text[at] == "{":
            depth += 1
        elif text[at] == "}":
            depth -= 1
            if depth == 0:
                return at
        at += 1
    return None


def _once(text: str) -> str:
    text = _ESCAPED_SPACE.sub(" ", text.replace("−", "-").replace("~", " "))
    text = " ".join(text.split())
    text = _unwrapped(text).rstrip(".").removeprefix("$").strip()
    text = text.replace("{,}", ",")
    text = _DROPPED.sub("", text)
    text = _plain_text(_UNIT_TEXT.sub("", text))
    text = _FRAC_NAME.sub(lambda _: r"\frac", text)
    text = _SHORT_FRAC.sub(_braced, text)
    text = _INT_FRAC.sub(_slashed, text)
    text = _SHORT_SQRT.sub(r"\\sqrt{\1}", text)
    named = _NAMED.match(text)
    if named:
        text = text[named.end() :]
    if _SPACED_THOUSANDS.fullmatch(text):
        text = text.replace(" ", "")
    if not _BRACKET.search(text):
        text = _THOUSANDS.sub(lambda m: m[0].replace(",", ""), text)
    text = _NUMBER.sub(_trimmed, _POINT.sub("0.", text))
    text = "0" if text == "-0" else text
    if not _NOT_UNITS.search(text):
        units = _UNITS.fullmatch(text)
        text = units[1] if units else text
    text = _SPACED.sub("", text)
    return text.lower() if _PHRASE.fullmatch(text) else text.strip()


def _unwrapped(text: str) -> str:
    """Without math delimiters, or braces, around the whole."""
    while text.startswith("{") and unbraced_end(text, 1) == len(text) - 1:
        text = text[1:-1].strip()
    for left, right in _WRAPPED:
        inner = text[len(left) : -len(right)]
        long_enough = len(text) > len(left) + len(right)
        if long_enough and text.startswith(left) and text.endswith(right) and left not in inner:
            return inner.strip()
    return text


def _plain_text(text: str) -> str:
    r"""`\text{...}` and its like become what they hold."""
    while (match := _TEXT.search(text)) is not None:
        end = unbraced_end(text, match.end())
        if end is None:
            break
        text = f"{text[: match.start()]}{text[match.end() : end]}{text[end + 1 :]}"
    return text


def _braced(match: re.Match[str]) -> str:
    over, under = (part for part in match.groups() if part is not None)
    return f"\\frac{{{over}}}{{{under}}}"


def _slashed(match: re.Match[str]) -> str:
    sign, over, under = match.groups()
    negative = (sign == "-") != over.startswith("-")
    return f"{'-' if negative else ''}{over.lstrip('+-')}/{under}"


def _trimmed(match: re.Match[str]) -> str:
    """A number without plus sign, leading zeros and zeros at the end of its decimals."""
    sign, whole, decimals = match.groups()
    return f"{sign}{whole}.{decimals}" if decimals else f"{sign}{whole}"
