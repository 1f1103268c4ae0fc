r"""Decides whether answers are equal. Everything else in this package serves this decision.

The last `\boxed{...}` of a path is compared by these tests, cheapest first:

1. spelling: both have the same normal form (`spelling.normalize`);
2. number: both are plain numbers, and their exact values decide (`numbers.parse_number`);
3. name: named values, `x=3,y=5`, equal the pair `(3,5)`, and the hour `3:00pm` equals `3`. Other
   times, words and names such as `AB` equal only what is spelled in the same way;
4. mathematics: a worker process compares the formulas (`workers.mathematics`).

Where no path has a box, the answers that the paths name (`extraction.find_named_answer`) are
compared in the same way.

Open-ended answers, where no box is expected, are compared by one of

5. words: how much of their wording is shared (`pairwise.are_alike`);
6. meaning: the distance of their embeddings, if a model is configured
   (`workers.embedding_groups`).
"""

import itertools
import re
from fractions import Fraction

from flashedge.answers.numbers import parse_number
from flashedge.answers.spelling import capitalize_option, normalize

ANSWER_KINDS = ("boxed", "text", "whole", "json")
"""The kinds of answers that a run may have. Answers of the kind `boxed` are compared by tests 1 to
4, `text` by test 5 or 6, and `whole` as whole texts. Answers of the kind `json` that begin as JSON
or hold a tool call are compared in one spelling (`structured.write_canonically`); text before the
call is dropped. The others of this kind are compared by their boxes, or else as whole texts."""
_COMMAND = re.compile(r"\\(?:begin|end)\{\w+\}|\\[a-zA-Z]+")
_FUNCTIONS = re.compile(
    r"(?:arc|a)?(?:sin|cos|tan|cot|sec|csc)h?|log|exp|sqrt|min|max|gcd|lcm|mod|det|lim|cis"
)
_WORD = re.compile(r"[^\W\d_]{3,}|[^\W\d_]{2,} (?=[^\W\d_]{2,})")
_UNREAD = re.compile(r"""['"]|\d\)?_|\^\{?(?:T\b|\\top|\\prime)""")
"""What the parser of formulas drops: primes, the base of a number, a transpose."""
_VALUES = re.compile(r"[a-zA-Z]\w*=[^=,()\[\]]+(?:,[a-zA-Z]\w*=[^=,()\[\]]+)+")
_PAIR = re.compile(r"(?:\(([a-zA-Z,]+)\)=)?\(?([^()]+)\)?")
_HOUR = re.compile(r"(\d+):00[ap]m")
_FRACTIONAL = re.compile(r"/|overline")
_SPELLED = re.compile(
    r"[A-Z]|[A-Z]{2}|\d\d?:[0-5]\d(?:[ap]m|:\d\d)?"
    r"|(?:no|on|up|do|go|in|it|is|if|to|at|by|as|am|pm|ok)"
)
"""One or two capitals, a time, or a word of two letters."""
MAX_ERROR, MAX_RELATIVE_ERROR = Fraction(1, 2_000_000), Fraction(1, 100_000)
"""A decimal rounds a value if they differ by at most half a unit of the sixth decimal, and by at
most a 100,000th of the larger one. Chosen by hand: 0.333 is not yet a third, and 0.333333 is."""


def decide_equal(a: str, b: str) -> bool | None:
    """Whether two boxed answers are equal by tests 1 to 3. None if only mathematics can decide."""
    a, b = normalize(a), normalize(b)
    if capitalize_option(a) == capitalize_option(b):
        return True
    left, right = parse_number(a), parse_number(b)
    if left is not None and right is not None:
        tolerance = min(MAX_ERROR, MAX_RELATIVE_ERROR * max(abs(left), abs(right)))
        return left == right or (_may_round(a, b) and abs(left - right) <= tolerance)
    if bool(_VALUES.fullmatch(a)) != bool(_VALUES.fullmatch(b)):
        return _is_pair(a, b) if _VALUES.fullmatch(a) else _is_pair(b, a)
    if (hour := _HOUR.fullmatch(a) or _HOUR.fullmatch(b)) and hour[1] in (a, b):
        return True
    return False if _is_name(a) or _is_name(b) else None


def _is_pair(values: str, form: str) -> bool:
    """Whether a form lists the values in the order of their names: `(x,y)=(3,5)` is `y=5,x=3`."""
    pair = _PAIR.fullmatch(form)
    named = sorted(value.split("=") for value in values.split(","))
    if pair is None or pair[1] not in (None, ",".join(name for name, _ in named)):
        return False
    parts = pair[2].split(",")
    return len(parts) == len(named) and all(
        decide_equal(value, part) for (_, value), part in zip(named, parts, strict=True)
    )


def _may_round(a: str, b: str) -> bool:
    """Whether one of two numbers is a fraction and the other one a decimal."""
    fractions = [form for form in (a, b) if _FRACTIONAL.search(form)]
    return len(fractions) == 1 and "." in (b if fractions == [a] else a)


def _is_name(form: str) -> bool:
    """Whether a normal form is a name. In a formula letters are factors. Three letters in a row are
    a word, except functions and products such as `abc`."""
    if _SPELLED.fullmatch(form) or _UNREAD.search(form):
        return True
    words = _WORD.findall(_COMMAND.sub(" ", form))
    return any(not _FUNCTIONS.fullmatch(w) and not _is_product(w) for w in words)


def _is_product(word: str) -> bool:
    """Whether each letter is one or two places after the one before, as in `abc` and `xyz`."""
    steps = [ord(b) - ord(a) for a, b in itertools.pairwise(word)]
    return " " not in word and all(0 < step <= 2 for step in steps)
