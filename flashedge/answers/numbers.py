"""Reads the value of an answer that is a number, and the values that a text names.

Open-ended answers that differ only in a figure ("3 days", "four days") are alike in wording and in
meaning, so their numbers are compared by value as well.
"""

import re
from fractions import Fraction

_MAX_LENGTH = 1000  # characters; Python refuses to read an integer of more than 4,300 digits
_INTEGER = re.compile(r"-?\d+")
_DECIMAL = re.compile(r"-?\d+\.\d+")
_FRACTION = re.compile(r"(-?\d+)/(\d+)")
_POWER = re.compile(
    r"(?:(-?\d+(?:\.\d+)?)(?:\\times ?|\\cdot ?|\*|x ?)|(-?))10\^(?:\{(-?\d{1,4})\}|(-?\d{1,4}))"
)
_EXPONENT = re.compile(r"(-?\d+(?:\.\d+)?)[eE]([+-]?\d{1,4})")
_REPEATING = re.compile(r"(-?\d+)\.(\d*)\\overline\{(\d+)\}")
_BASED = re.compile(r"(-?)\(?([0-9][0-9A-Z]*)\)?_(?:\{(\d{1,2}|[a-z]+)\}|(\d))")
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"

_WORDS = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
sixteen seventeen eighteen nineteen
"""
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth"
CARDINALS = {
    **{word: value for value, word in enumerate(_WORDS.split())},
    **{word: 10 * value for value, word in enumerate(_TENS.split(), start=2)},
}
_SMALL = {**CARDINALS, **{word: value for value, word in enumerate(_ORDINALS.split(), start=1)}}
SCALES = {
    "dozen": 12,
    "hundred": 100,
    "thousand": 1000,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}
_TOKEN = re.compile(r"\d+(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|[^\W\d_]+")


def parse_number(normalized: str) -> Fraction | None:
    r"""The exact value of an answer that is one number; None for anything else.

    normalized: a result of `spelling.normalize`, which writes mixed numbers as fractions. A number
    is an integer, a decimal, a fraction of integers, a power of ten (`3\times10^{5}`, `1e3`), a
    repeating decimal (`0.\overline{3}`) or an integer in a base (`101_2` is 5).
    """
    if len(normalized) > _MAX_LENGTH:
        return None
    if _INTEGER.fullmatch(normalized) or _DECIMAL.fullmatch(normalized):
        return Fraction(normalized)
    if match := _FRACTION.fullmatch(normalized):
        return Fraction(int(match[1]), int(match[2])) if int(match[2]) else None
    if match := _POWER.fullmatch(normalized):
        return Fraction(match[1] or f"{match[2]}1") * Fraction(10) ** int(match[3] or match[4])
    if match := _EXPONENT.fullmatch(normalized):
        return Fraction(match[1]) * Fraction(10) ** int(match[2])
    if match := _REPEATING.fullmatch(normalized):
        whole, fixed, repeated = match.groups()
        part = Fraction(int(repeated), (10 ** len(repeated) - 1) * 10 ** len(fixed))
        return Fraction(f"{whole}.{fixed}0") + (-part if whole.startswith("-") else part)
    if match := _BASED.fullmatch(normalized):
        base = match[3] or match[4]
        radix = int(base) if base.isdecimal() else _SMALL.get(base, 0)
        if 2 <= radix <= 36 and all(_DIGITS.index(digit) < radix for digit in match[2]):
            return Fraction(int(f"{match[1]}{match[2]}", radix))
    return None


def parse_words(text: str) -> int | None:
    """The value of a number in English words, "five million"; None for anything else."""
    words = text.casefold().replace("-", " ").split()
    if not words or not all(w == "and" or w in CARDINALS or w in SCALES for w in words):
        return None
    if "and" in words and not SCALES.keys() & set(words):
        return None
    found = find_numbers(text)
    return int(next(iter(found))) if len(found) == 1 else None


def find_numbers(text: str) -> frozenset[float]:
    """Values in `text`: "21", "twenty-one" and "5,000" are 21, 21 and 5000.

    A run of number words is one number ("a hundred and two" is 102); an ordinal counts as its
    number. Minus signs are ignored, and so are fractions in words, such as "a half".
    """
    found: set[float] = set()
    # The number so far is done + part: thousands, millions and so on, and what follows them.
    done, part, is_open = 0.0, 0.0, False
    for token in [*_TOKEN.findall(text.casefold()), ""]:
        if token[:1].isdecimal():
            if is_open:
                found.add(done + part)
            done, part, is_open = 0.0, float(token.replace(",", "")), True
        elif token in SCALES:
            scaled = (part or 1.0) * SCALES[token]
            done, part = (done + scaled, 0.0) if SCALES[token] >= 1000 else (done, scaled)
            is_open = True
        elif token in _SMALL:
            tens = part % 100 in range(20, 100, 10) and 0 < _SMALL[token] < 10
            if is_open and not (part % 100 == 0 or tens):
                found.add(done + part)
                done, part = 0.0, 0.0
            part, is_open = part + _SMALL[token], True
        elif is_open and token != "and":
            found.add(done + part)
            done, part, is_open = 0.0, 0.0, False
    return frozenset(found)


def numbers_conflict(a: frozenset[float], b: frozenset[float]) -> bool:
    """Whether each text has a number that the other lacks. In just one text it may be an aside."""
    return bool(a - b) and bool(b - a)
