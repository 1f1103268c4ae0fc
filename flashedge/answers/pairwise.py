"""Turns a pairwise test of equality into groups of answers, and compares texts by their wording."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from flashedge.answers.numbers import find_numbers, numbers_conflict

MIN_LIKENESS = 0.6
_WORD = re.compile(r"[^\W_]+|[^\w\s]")


def group_by_first_match(
    answers: Sequence[str | None], are_equal: Callable[[str, str], bool]
) -> tuple[str | None, ...]:
    """answers: (n,) -> (n,) the representative of each one's group, None without an answer.

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

    -> (count,) the lowest member of each item's group. Pairs join two groups, from the most similar
    on, only if every pair across them is in `similar`, so no chain of small steps joins two distant
    items. The order of the pairs does not matter. O(pairs) joins of bit sets.
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
    """Whether two open-ended texts count as one answer: their likeness is at least 0.6, and not
    each of them names a number that the other lacks."""
    return likeness(a, b) >= MIN_LIKENESS and not numbers_conflict(find_numbers(a), find_numbers(b))


def likeness(a: str, b: str) -> float:
    """Mean of two cosines, of word counts and of character trigram counts. In [0, 1].

    It replaces the paper's embedding model where none is installed, and measures shared wording,
    not meaning: a text and its paraphrase differ. Ref: arXiv 2412.20993 §3.1 (a small embedding
    model); the measure is ours.
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
