"""Whether answers are equal. Everything else in this package serves the functions here.

The last `\boxed{...}` of a path is compared by these tests, cheapest first:

1. spelling: both have the same normal form (`spelling.normalize`);
2. number: both are plain numbers, and their exact values decide (`numbers.parse_number`);
3. name: one of them has words, a clock time or a name such as `AB`, so they differ; or the values
   of several names, `x=3,y=5`, which is the pair `(3,5)`;
4. mathematics: a worker process compares the formulas (`workers.mathematics`).

Where no path has a box, the answers that the paths name are compared in the same way
(`extraction.find_named_answer`).

Open-ended answers, where no box is expected, are compared by one of

5. words: how much of their wording is shared (`pairwise.are_alike`);
6. meaning: the distance of their embeddings, if a model is configured
   (`workers.embedding_groups`).

Where the whole text of a path is the answer, nothing is compared here: the verifier alone decides.

Answers that may be JSON or tool calls are compared as JSON (`structured.write_canonically`) where
they begin as such, tool calls also where reasoning stands before them; the others by their boxes,
or as they are where they have none.
"""

import itertools
import re
from fractions import Fraction

from flashedge.answers.numbers import parse_number
from flashedge.answers.spelling import normalize, raise_option

ANSWER_KINDS = ("boxed", "text", "whole", "json")
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
    r"[A-Z]|[A-Z]{2}|\d\d?:[0-5]\d(?:[ap]m|:\d\d)?|(?:no|on|up|do|go|in|it|is|if|to|at|by|as|am|pm|ok)"
)
LEAST_DIGIT, LEAST_SHARE = Fraction(1, 2_000_000), Fraction(1, 100_000)
"""A decimal rounds a value if both agree in six decimals and in five digits."""


def decide_equal(a: str, b: str) -> bool | None:
    """Whether two boxed answers are equal by tests 1 to 3. None if only mathematics can decide."""
    a, b = normalize(a), normalize(b)
    if raise_option(a) == raise_option(b):
        return True
    left, right = parse_number(a), parse_number(b)
    if left is not None and right is not None:
        least = min(LEAST_DIGIT, LEAST_SHARE * max(abs(left), abs(right)))
        return left == right or (_may_round(a, b) and abs(left - right) <= least)
    if bool(_VALUES.fullmatch(a)) != bool(_VALUES.fullmatch(b)):
        return _is_pair(a, b) if _VALUES.fullmatch(a) else _is_pair(b, a)
    if (hour := _HOUR.fullmatch(a) or _HOUR.fullmatch(b)) and hour[1] in (a, b):
        return True
    return False if _is_name(a) or _is_name(b) else None


def _is_pair(values: str, form: str) -> bool:
    """Whether a form has the values of the names in their order: `(3,5)` and `(x,y)=(3,5)` are
    `x=3,y=5`."""
    pair = _PAIR.fullmatch(form)
    named = sorted(value.split("=") for value in values.split(","))
    if pair is None or pair[1] not in (None, ",".join(name for name, _ in named)):
        return False
    parts = pair[2].split(",")
    return len(parts) == len(named) and all(
        decide_equal(value, part) for (_, value), part in zip(named, parts, strict=True)
    )


def _may_round(a: str, b: str) -> bool:
    """Whether just one of two numbers is a decimal, and the other one a fraction."""
    fractions = [form for form in (a, b) if _FRACTIONAL.search(form)]
    return len(fractions) == 1 and "." in (b if fractions == [a] else a)


def _is_name(form: str) -> bool:
    """Whether a normal form is no formula, in which letters would be factors. Runs of three letters
    are words, but for `abc` and `xyz`."""
    if _SPELLED.fullmatch(form) or _UNREAD.search(form):
        return True
    words = _WORD.findall(_COMMAND.sub(" ", form))
    return any(not _FUNCTIONS.fullmatch(w) and not _is_product(w) for w in words)


def _is_product(word: str) -> bool:
    """Whether letters are neighbours in the alphabet, in its order, as factors are."""
    steps = [ord(b) - ord(a) for a, b in itertools.pairwise(word)]
    return " " not in word and all(0 < step <= 2 for step in steps)
