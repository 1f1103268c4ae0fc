"""Which answers are the same: by a test of equality, or for open-ended text by likeness of words.

Short answers are grouped by spelling, then by mathematics (`workers.mathematics`, which asks
`same`-like questions of a worker). Text that is no formula is grouped by `likeness`, or where an
embedding model is set up (`workers.embedding`) by `complete_links` over its cosines.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from flashedge.answers.numbers import numbers, numbers_conflict

_WORD = re.compile(r"[^\W_]+|[^\w\s]")
LIKE = 0.6


def group(
    answers: Sequence[str | None], same: Callable[[str, str], bool]
) -> tuple[str | None, ...]:
    """answers: (n,) -> (n,) the representative of each one's cluster, None for no answer.

    An answer joins the first cluster whose representative (its first member) it equals, in order,
    so the result is a function of the order given and of nothing else.
    """
    found: list[str] = []
    labels: list[str | None] = []
    for answer in answers:
        if answer is None:
            labels.append(None)
            continue
        home = next((r for r in found if r == answer or same(r, answer)), None)
        if home is None:
            found.append(answer)
        labels.append(answer if home is None else home)
    return tuple(labels)


def complete_links(count: int, alike: Iterable[tuple[float, int, int]]) -> tuple[int, ...]:
    """Group `count` things of which the pairs `alike` = (similarity, i, j) count as the same.

    -> (count,) lowest member of each one's group. Pairs are taken from the most similar on, ties
    by i and j, and join two groups only if every pair across them is in `alike`: so any two
    members of a group are alike, and no chain of small steps makes one group of two ends. The
    result is a function of the pairs, not of the order they come in. O(pairs) joins of bit sets.
    """
    links = [1 << i for i in range(count)]  # whom each one is alike to, itself among them
    ranked = sorted((-similarity, min(i, j), max(i, j)) for similarity, i, j in alike)
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


def likeness(a: str, b: str) -> float:
    """Cosine of the counts of words and of character trigrams, averaged, in [0, 1].

    What stands in for the paper's embedding model where none is installed: it sees shared wording
    (order and inflection blurred), not meaning; "yes" and "no" differ, so do a text and its
    paraphrase. Ref: arXiv 2412.20993 §3.1 (a small embedding model); the measure is ours.
    """
    left, right = " ".join(a.casefold().split()), " ".join(b.casefold().split())
    if left == right:
        return 1.0
    words = _cosine(Counter(_WORD.findall(left)), Counter(_WORD.findall(right)))
    return (words + _cosine(_trigrams(left), _trigrams(right))) / 2


def alike(a: str, b: str, least: float = LIKE) -> bool:
    """Whether two open-ended texts count as one answer: likeness at least `least`, and no number
    in each that the other lacks."""
    return likeness(a, b) >= least and not numbers_conflict(numbers(a), numbers(b))


def _trigrams(text: str) -> Counter[str]:
    padded = f"  {text} "
    return Counter(padded[i : i + 3] for i in range(len(padded) - 2))


def _cosine(a: Counter[str], b: Counter[str]) -> float:
    over = sum(count * b[key] for key, count in a.items())
    under = math.sqrt(sum(c * c for c in a.values()) * sum(c * c for c in b.values()))
    return min(1.0, over / under) if under else 0.0
