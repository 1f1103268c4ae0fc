"""Answers of finished paths: found in the text, brought to one spelling, counted.

Equality here is equality of spelling after `normalize`, and of plain numbers; what needs
mathematics (x^2+2x+1 against (x+1)^2) is for `flashedge.answers.workers.mathematics`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from fractions import Fraction

from flashedge.answers.spelling import normalize, unbraced_end
from flashedge.types import Vote

__all__ = ["decide_equal", "extract_answer", "normalize", "plain_number", "votes"]

_BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{")
_INTEGER = re.compile(r"-?\d+")
_DECIMAL = re.compile(r"-?\d+\.\d+")
_FRACTION = re.compile(r"(-?\d+)/(\d+)")
_WORDS = re.compile(r"[^\W\d_]{3,}(?: [^\W\d_]+)*")
_MAX_DIGITS = 1000


def extract_answer(text: str) -> str | None:
    r"""Contents of the last `\boxed{...}` whose braces balance, stripped; None if there is none.

    An empty box is no answer. Of nested boxes the inner one counts.
    """
    for start in reversed([m.end() for m in _BOXED.finditer(text)]):
        end = unbraced_end(text, start)
        if end is not None:
            return text[start:end].strip() or None
    return None


def plain_number(normalized: str) -> Fraction | None:
    """The value of an integer, decimal or fraction of integers; None for anything else."""
    if len(normalized) > _MAX_DIGITS:
        return None
    if _INTEGER.fullmatch(normalized) or _DECIMAL.fullmatch(normalized):
        return Fraction(normalized)
    match = _FRACTION.fullmatch(normalized)
    if match and int(match[2]):
        return Fraction(int(match[1]), int(match[2]))
    return None


def decide_equal(a: str, b: str) -> bool | None:
    """Whether two answers are equal as far as spelling can tell; None: it can't.

    Decided: the same normal form; two plain numbers (but not a fraction against a rounded
    decimal: that is a question of tolerance); two plain phrases of words.
    """
    a, b = normalize(a), normalize(b)
    if a == b:
        return True
    left, right = plain_number(a), plain_number(b)
    if left is not None and right is not None:
        if left == right:
            return True
        mixed = ("/" in a and "." in b) or ("." in a and "/" in b)
        return None if mixed else False
    if _WORDS.fullmatch(a) and _WORDS.fullmatch(b):
        return False
    return None


def votes(ballots: Iterable[tuple[str | None, float]], by: str = "weighted") -> tuple[Vote, ...]:
    """Count answers, the winner first. Paths without an answer have no vote.

    ballots: (num_paths, 2), the representative answer of each path's cluster and the path's
    score, in a fixed order (node ids). `by` is weighted (sum of scores, ties by count) or
    majority (count, ties by sum of scores); what is still tied goes to the earlier ballot.
    Ref: weighted majority vote, arXiv 2408.03314 §5.1.
    """
    scores: dict[str, list[float]] = {}
    for answer, score in ballots:
        if answer is not None:
            scores.setdefault(answer, []).append(score)
    counted = [Vote(answer=a, weight=math.fsum(s), count=len(s)) for a, s in scores.items()]
    if by == "majority":
        return tuple(sorted(counted, key=lambda v: (-v.count, -v.weight)))
    return tuple(sorted(counted, key=lambda v: (-v.weight, -v.count)))
