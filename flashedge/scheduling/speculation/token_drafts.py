"""Drafts the next tokens of a path from the text of its run, and from its client's earlier texts.

Paths of a run repeat the problem and each other, and what a model has written before it writes
again. An index counts which tokens have followed each context of one to three tokens. A draft takes
the token that has followed the longest known context most often. Of what the indices name, it takes
the token that is likelier by how often such ones were right.

The engine computes the rows of drafted tokens together with the row of the last known one, and
draws a token in each. As long as that is the drafted one, the next row has been computed from the
right text. So a wrong draft costs its row, and changes no token.

Ours, after prompt lookup decoding, which looks for the context in the path itself.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

ORDERS = (3, 2, 1)
"""Tokens of a context, the longest first."""
MOST_TOKENS = 8
"""The most drafted tokens of a path. At eight, drafts on real answers gain nearly all there is."""
MOST_ON_CARD = 7
"""The most that a model runner drafts, see `list_widths`."""
MOST_FOLLOWERS = 8
"""The most different tokens that are kept for a context. Further ones replace the last."""
FADE = 4096
"""Drafted tokens of a kind after which its earlier ones count half."""
BITS = 24
"""Bits of a packed follower that hold its token. Those above hold its count."""
_TOKEN = (1 << BITS) - 1
_ONE = 1 << BITS


@dataclass(frozen=True, slots=True)
class DraftToken:
    token: int
    kind: int
    """What is known of its context, an index of `AcceptanceRates`."""
    chance: float
    """That it is drawn, and so are the drafted tokens before it."""


class TextIndex:
    """Counts the followers of each context in one text or several."""

    def __init__(self) -> None:
        self._followers: tuple[dict[int, int | list[int]], ...] = ({}, {}, {})
        """By the length of the context less one, and the context. Most have a single follower."""

    def __len__(self) -> int:
        """The number of contexts."""
        return sum(map(len, self._followers))

    def add(self, text: Sequence[int], start: int = 0) -> None:
        """Count the tokens of `text` from index `start` on. Those before are their context."""
        one, two, three = self._followers
        for at in range(max(1, start), len(text)):
            token, context = text[at], text[at - 1]
            _count(one, context, token)
            if at > 1:
                context |= text[at - 2] << BITS
                _count(two, context, token)
                if at > 2:
                    _count(three, context | text[at - 3] << 2 * BITS, token)

    def find(self, text: Sequence[int]) -> tuple[int, int | list[int]] | None:
        """Return the length of the longest known context at the end of `text`, and its packed
        followers. None if no context is known."""
        one, two, three = self._followers
        size = len(text)
        context = text[-1]
        if size > 1:
            pair = context | text[-2] << BITS
            if size > 2 and (found := three.get(pair | text[-3] << 2 * BITS)) is not None:
                return 3, found
            if (found := two.get(pair)) is not None:
                return 2, found
        found = one.get(context)
        return None if found is None else (1, found)


def _count(followers: dict[int, int | list[int]], context: int, token: int) -> None:
    found = followers.get(context)
    if found is None:
        followers[context] = _ONE | token
    elif isinstance(found, list):
        for at, packed in enumerate(found):
            if packed & _TOKEN == token:
                found[at] = packed + _ONE
                return
        if len(found) == MOST_FOLLOWERS:
            found.pop()
        found.append(_ONE | token)
    elif found & _TOKEN == token:
        followers[context] = found + _ONE
    else:
        followers[context] = [found, _ONE | token]


Owner = tuple[str, str]
"""Whose text it is: a kind, program or client, and its name."""


def list_owners(program: str, client: str) -> list[Owner]:
    """List the owners of a request's text, the program first. client: empty if it is not known."""
    own = ("program", program)
    return [own, ("client", client)] if client else [own]


MOST_INDICES = 2
"""The most indices that a draft looks in: the run's, and its client's."""
KINDS_OF_ORDER = 6
KINDS_OF_INDEX = len(ORDERS) * KINDS_OF_ORDER


def find_kind(order: int, count: int, lead: float | None) -> int:
    """The kind of a drafted token in its index. order: tokens of its context. count: how often it
    has followed. lead: by how much it leads the second of several followers, None for a single
    one."""
    of_order = min(count, 3) - 1 if lead is None else 3 + (lead >= 0.5) + (lead >= 1.5)
    return (order - 1) * KINDS_OF_ORDER + of_order


@dataclass(slots=True)
class AcceptanceRates:
    """How often drafted tokens of each kind were the ones that were drawn, given that all drafted
    tokens before them were."""

    tried: list[float] = field(default_factory=lambda: [4.0] * MOST_INDICES * KINDS_OF_INDEX)
    accepted: list[float] = field(default_factory=lambda: [2.0] * MOST_INDICES * KINDS_OF_INDEX)

    def note(self, kinds: Sequence[int], right: int) -> None:
        """Note that the first `right` tokens of a draft were drawn, and the next one was not.
        kinds: those of its tokens."""
        for at, kind in enumerate(kinds[: right + 1]):
            self.tried[kind] += 1
            self.accepted[kind] += at < right
            if self.tried[kind] > FADE:
                self.tried[kind] /= 2
                self.accepted[kind] /= 2

    def find(self, kind: int) -> float:
        return self.accepted[kind] / self.tried[kind]


def draft(
    indices: Sequence[TextIndex],
    text: Sequence[int],
    *,
    most: int,
    least_chance: float,
    rates: AcceptanceRates,
    ends: Callable[[int, int], bool],
) -> list[DraftToken]:
    """Draft the tokens after `text`, (at least 1,) ids.

    indices: at most MOST_INDICES, each call's in the same order.
    most: tokens at most. least_chance: the chance of being accepted below which a row is not worth
    its time.
    ends: whether a token after another ends the step. Such a token is not drafted: nothing follows
    it, and the row before draws it anyway.
    """
    path = list(text[-len(ORDERS) :])
    found: list[DraftToken] = []
    chance = 1.0
    while len(found) < most and (likeliest := find_likeliest(indices, path, rates)) is not None:
        token, kind, rate = likeliest
        chance *= rate
        if chance < least_chance or ends(path[-1], token):
            break
        found.append(DraftToken(token, kind, chance))
        path.append(token)
    return found


def find_likeliest(
    indices: Sequence[TextIndex], path: Sequence[int], rates: AcceptanceRates
) -> tuple[int, int, float] | None:
    """Find the token that likeliest comes after `path`, its kind and how often such ones were
    right. None if no index knows a context."""
    likeliest = None
    for number, index in enumerate(indices):
        if (known := index.find(path)) is None:
            continue
        order, followers = known
        packed, lead = choose_follower(followers)
        kind = number * KINDS_OF_INDEX + find_kind(order, packed >> BITS, lead)
        rate = rates.find(kind)
        if likeliest is None or rate > likeliest[2]:
            likeliest = packed & _TOKEN, kind, rate
    return likeliest


def choose_follower(followers: int | Sequence[int]) -> tuple[int, float | None]:
    """Return the packed follower with the highest count, the first of several, and by how much its
    logarithm leads the next one's. None for a single follower."""
    if isinstance(followers, int):
        return followers, None
    best = most = second = 0
    for packed in followers:
        if (count := packed >> BITS) > most:
            best, most, second = packed, count, most
        elif count > second:
            second = count
    return best, math.log(most / second)


def list_widths(sequences: int, most: int) -> list[tuple[int, int, int]]:
    """How many tokens a model runner drafts of each sequence, as (first, last, tokens) of ranges of
    the number of sequences in a step. A step has no more rows than the one of most sequences.

    A sequence has 1, 2, 4, ... rows, so that a CUDA graph of 8, 16, 24, ... rows fits steps of any
    width: vLLM looks for a graph only among those of the next larger number of rows.

    sequences: the most in a step. most: drafted tokens of a sequence, one less than a power of two.
    """
    found, first, rows = [], 1, 1 + most
    while rows:
        if (last := sequences // rows) >= first:
            found.append((first, last, rows - 1))
            first = last + 1
        rows //= 2
    return found
