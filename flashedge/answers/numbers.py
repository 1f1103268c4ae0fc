"""Numbers: the value of an answer that is one, and the values that a text names.

Open-ended answers that differ only in a figure ("3 days", "four days") are alike by every measure
of wording or meaning, so their numbers are compared by value as well.
"""

from __future__ import annotations

import re
from fractions import Fraction

_MAX_DIGITS = 1000
_INTEGER = re.compile(r"-?\d+")
_DECIMAL = re.compile(r"-?\d+\.\d+")
_FRACTION = re.compile(r"(-?\d+)/(\d+)")

_WORDS = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
sixteen seventeen eighteen nineteen
"""
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth"
_SMALL = {
    **{word: value for value, word in enumerate(_WORDS.split())},
    **{word: 10 * value for value, word in enumerate(_TENS.split(), start=2)},
    **{word: value for value, word in enumerate(_ORDINALS.split(), start=1)},
}
_SCALES = {"dozen": 12, "hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9}
_TOKEN = re.compile(r"\d+(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|[^\W\d_]+")


def parse_number(normalized: str) -> Fraction | None:
    """The value of an integer, decimal or fraction of integers; None for anything else.

    normalized: a result of `spelling.normalize`, which writes mixed numbers as fractions.
    """
    if len(normalized) > _MAX_DIGITS:
        return None
    if _INTEGER.fullmatch(normalized) or _DECIMAL.fullmatch(normalized):
        return Fraction(normalized)
    match = _FRACTION.fullmatch(normalized)
    if match and int(match[2]):
        return Fraction(int(match[1]), int(match[2]))
    return None


def find_numbers(text: str) -> frozenset[float]:
    """Values in `text`: "21", "twenty-one" and "5,000" are 21, 21 and 5000.

    A run of number words is one number ("a hundred and two" is 102); ordinals count as their
    number. Signs, fractions in words and languages other than English are ignored.
    """
    found: set[float] = set()
    done, part, open_ = 0.0, 0.0, False
    for token in [*_TOKEN.findall(text.casefold()), ""]:
        if token[:1].isdigit():
            if open_:
                found.add(done + part)
            done, part, open_ = 0.0, float(token.replace(",", "")), True
        elif token in _SCALES:
            scaled = (part or 1.0) * _SCALES[token]
            done, part = (done + scaled, 0.0) if _SCALES[token] >= 1000 else (done, scaled)
            open_ = True
        elif token in _SMALL:
            tens = part % 100 in range(20, 100, 10) and 0 < _SMALL[token] < 10
            if open_ and not (part % 100 == 0 or tens):
                found.add(done + part)
                done, part = 0.0, 0.0
            part, open_ = part + _SMALL[token], True
        elif open_ and token != "and":
            found.add(done + part)
            done, part, open_ = 0.0, 0.0, False
    return frozenset(found)


def numbers_conflict(a: frozenset[float], b: frozenset[float]) -> bool:
    """Whether each of two texts names a number that the other does not. a, b: their numbers.

    A number that only one of them names is no conflict: it may be an aside.
    """
    return bool(a - b) and bool(b - a)
