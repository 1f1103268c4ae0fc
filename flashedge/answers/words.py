"""How alike two open-ended answers are by their wording, without a model."""

from __future__ import annotations

import math
import re
from collections import Counter

from flashedge.answers.numbers import find_numbers, numbers_conflict

MIN_LIKENESS = 0.6
_WORD = re.compile(r"[^\W_]+|[^\w\s]")


def are_alike(a: str, b: str, least: float = MIN_LIKENESS) -> bool:
    """Whether two open-ended texts count as one answer: their likeness is at least `least`, and
    not each of them names a number that the other lacks."""
    return likeness(a, b) >= least and not numbers_conflict(find_numbers(a), find_numbers(b))


def likeness(a: str, b: str) -> float:
    """Mean of two cosines, of word counts and of character trigram counts. In [0, 1].

    It replaces the paper's embedding model where none is installed. It measures shared wording
    (order and inflection blurred), not meaning: a text and its paraphrase differ.
    Ref: arXiv 2412.20993 §3.1 (a small embedding model); the measure is ours.
    """
    left, right = " ".join(a.casefold().split()), " ".join(b.casefold().split())
    if left == right:
        return 1.0
    words = _cosine(Counter(_WORD.findall(left)), Counter(_WORD.findall(right)))
    return (words + _cosine(_trigrams(left), _trigrams(right))) / 2


def _trigrams(text: str) -> Counter[str]:
    padded = f"  {text} "
    return Counter(padded[i : i + 3] for i in range(len(padded) - 2))


def _cosine(a: Counter[str], b: Counter[str]) -> float:
    over = sum(count * b[key] for key, count in a.items())
    under = math.sqrt(sum(c * c for c in a.values()) * sum(c * c for c in b.values()))
    return min(1.0, over / under) if under else 0.0
