"""Turns a pairwise test of equality into groups of answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence


def group_by_first_match(
    answers: Sequence[str | None], are_equal: Callable[[str, str], bool]
) -> tuple[str | None, ...]:
    """answers: (n,) -> (n,) the representative of each one's group, None without an answer.

    An answer joins the first group whose representative (its first member) it equals, so the
    result depends on nothing but the order given.
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

    -> (count,) the lowest member of each item's group. Pairs are visited from the most similar
    on, ties by i and j, and join two groups only if every pair across them is in `similar`. So
    any two members of a group are similar, and no chain of small steps joins two distant items.
    The result does not depend on the order of the pairs. O(pairs) joins of bit sets.
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
