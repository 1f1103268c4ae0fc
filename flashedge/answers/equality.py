"""Whether answers are equal. Everything else in this package serves the functions here.

The last `\\boxed{...}` of a path is compared by these tests, cheapest first:

1. spelling: both have the same normal form (`spelling.normalize`);
2. number: both are plain numbers, and their values decide (`numbers.parse_number`);
3. phrase: both are plain words with different normal forms, so they differ;
4. mathematics: a worker process compares the formulas (`workers.mathematics`).

Open-ended answers, where no box is expected, are compared by one of

5. words: how much of their wording is shared (`words.are_alike`);
6. meaning: the distance of their embeddings, if a model is configured
   (`workers.embedding_groups`).

Where the whole text of a path is the answer, nothing is compared here: the verifier alone decides.

Answers that may be JSON or tool calls are compared as JSON (`structured.write_canonically`) where
they begin as such, tool calls also where reasoning stands before them; the others by their boxes,
or as they are where they have none.
"""

from __future__ import annotations

import re

from flashedge.answers.numbers import parse_number
from flashedge.answers.spelling import normalize

ANSWER_KINDS = ("boxed", "text", "whole", "json")
_PHRASE = re.compile(r"[^\W\d_]{3,}(?: [^\W\d_]+)*")


def decide_equal(a: str, b: str) -> bool | None:
    """Whether two boxed answers are equal by tests 1 to 3. None if only mathematics can decide.

    A fraction and a decimal with different values stay undecided: the decimal may be rounded.
    """
    a, b = normalize(a), normalize(b)
    if a == b:
        return True
    left, right = parse_number(a), parse_number(b)
    if left is not None and right is not None:
        if left == right:
            return True
        may_be_rounded = ("/" in a and "." in b) or ("." in a and "/" in b)
        return None if may_be_rounded else False
    if _PHRASE.fullmatch(a) and _PHRASE.fullmatch(b):
        return False
    return None
