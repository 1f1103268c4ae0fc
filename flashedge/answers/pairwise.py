"""Turns a pairwise test of equality into groups of answers, and compares texts by their wording."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from flashedge.answers.numbers import find_numbers, numbers_conflict

MIN_LIKENESS = 0.6
"""Chosen by hand: near 1 each paraphrase is a group of its own, and near 0 all answers are one."""
_WORD = re.compile(r"[^\W_]+|[^\w\s]")


def group_by_first_match(
    answers: Sequence[str | None], are_equal: Callable[[str, str], bool]
) -> tuple[str | None, ...]:
    """answers: (n,) -> (n,) the representative of each answer's group. None stays None.

    An answer joins the first group whose representative (its first member) it equals.
    """
    representatives: list[str] = []
    labels: list[str | None] = []
    for answer in answers:
        if answer is None:
            labels.append(None)
            continue
        match = next((r for r in representatives if r == answer or are_equal(r, answer)), None)
        if match is None:
            representatives.append(answer)
        labels.append(answer if match is None else match)
    return tuple(labels)


def group_by_complete_links(
    count: int, similar: Iterable[tuple[float, int, int]]
) -> tuple[int, ...]:
    """Group `count` items, of which the pairs `similar` = (similarity, i, j) count as equal.

    -> (count,) the lowest member of each item's group. Pairs are taken from the most similar on.
    One joins two groups only if every pair across them is in `similar`, so no chain of small steps
    joins two distant items. The order of the pairs does not matter.
    """
    links = [1 << i for i in range(count)]  # bit set of the items similar to i, i among them
    ranked = sorted((-similarity, min(i, j), max(i, j)) for similarity, i, j in similar)
    for _, i, j in ranked:
        links[i] |= 1 << j
        links[j] |= 1 << i
    home = list(range(count))
    members = [1 << i for i in range(count)]
    for _, i, j in ranked:
        a, b = sorted((home[i], home[j]))
        if a != b and members[b] & links[a] == members[b]:
            for k in range(b, count):
                if home[k] == b:
                    home[k] = a
            members[a] |= members[b]
            links[a] &= links[b]
    return tuple(home)


def are_alike(a: str, b: str) -> bool:
    """Whether two open-ended texts are alike in wording, and their numbers do not conflict."""
    is_like = measure_likeness(a, b) >= MIN_LIKENESS
    return is_like and not numbers_conflict(find_numbers(a), find_numbers(b))


def measure_likeness(a: str, b: str) -> float:
    """The mean of two cosines in [0, 1]: of the counts of words and of character trigrams.

    It stands in for the paper's embedding model where none is installed, and measures shared
    wording, not meaning: a text and its paraphrase differ. Ref: arXiv 2412.20993 §3.1 (a small
    embedding model). Departure: the measure is ours.
    """
    left, right = " ".join(a.casefold().split()), " ".join(b.casefold().split())
    if left == right:
        return 1.0
    words = _compute_cosine(Counter(_WORD.findall(left)), Counter(_WORD.findall(right)))
    return (words + _compute_cosine(_count_trigrams(left), _count_trigrams(right))) / 2


def _count_trigrams(text: str) -> Counter[str]:
    padded = f"  {text} "
    return Counter(padded[i : i + 3] for i in range(len(padded) - 2))


def _compute_cosine(a: Counter[str], b: Counter[str]) -> float:
    over = sum(count * b[key] for key, count in a.items())
    under = math.sqrt(sum(c * c for c in a.values()) * sum(c * c for c in b.values()))
    return min(1.0, over / under) if under else 0.0
