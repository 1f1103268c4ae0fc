"""A table of what followed each context of one to three tokens, and its plain use: the naive twin
of `fused`.

The table holds what `scheduling.speculation.token_drafts.TextIndex` holds, as tensors of a fixed
size. A text has two owners: the program and the client of its request. A context's tag is a hash of
its owner and its tokens, and the low bits of the tag are the context's place. A context replaces
the one that had its place. Owners share the table, and none finds another's contexts, since all 63
bits of the tag have to be equal.

A draft is always `tokens` long. It repeats its last token where no context is known.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray

from flashedge.scheduling.speculation.token_drafts import BITS, MOST_FOLLOWERS, ORDERS
from flashedge.search.tree import mix64

PLACES = 1 << 19
"""Contexts that a table holds, a power of two. Each takes 72 bytes."""
LONGEST = len(ORDERS)
"""Tokens of the longest context."""
OWNERS = 2
"""The owners of a text. Its program is the first."""
NO_OWNER = 0
"""Stands for an owner that there is not. For it, nothing is counted or drafted."""


@dataclass(slots=True, eq=False)
class DraftTable:
    tags: torch.Tensor
    """(places,) int64. The tag of the context in each place, 0 for none."""
    followers: torch.Tensor
    """(places, MOST_FOLLOWERS) int64. Each place's packed followers, the first ones nonzero."""


@dataclass(slots=True, eq=False, kw_only=True)
class Slots:
    """What the device knows of the requests in its slots."""

    texts: torch.Tensor
    """(slots, most tokens) int32. Each request's tokens, those of its prompt first."""
    lengths: torch.Tensor
    """(slots,) int32. How many tokens each text has."""
    owners: torch.Tensor
    """(slots, OWNERS) int64. Hashes of the owners of each request's text, or NO_OWNER."""


def make_table(device: torch.device, places: int = PLACES) -> DraftTable:
    return DraftTable(
        tags=torch.zeros(places, dtype=torch.int64, device=device),
        followers=torch.zeros(places, MOST_FOLLOWERS, dtype=torch.int64, device=device),
    )


def count(table: DraftTable, slots: Slots, spans: torch.Tensor, longest: int) -> None:
    """Count what follows which context. spans: (spans, 3) int32, a slot and the start and end of
    the tokens to count in its text. longest: tokens of the longest span."""
    tags, followers = table.tags.numpy(), table.followers.numpy()
    for slot, start, end in spans.tolist():
        before = max(0, start - LONGEST)
        tokens = slots.texts[slot, before:end].tolist()
        ends = range(max(1, start) - before, min(end, start + longest) - before)
        for owner, at in product(list_owners(slots, slot), ends):
            for order in range(1, min(at, LONGEST) + 1):
                tag = find_tag(owner, tokens[at - order : at])
                place = tag & len(tags) - 1
                if tags[place] != tag:
                    tags[place], followers[place] = tag, 0
                count_follower(followers[place], tokens[at])


def list_owners(slots: Slots, slot: int) -> list[int]:
    return [owner for owner in slots.owners[slot].tolist() if owner != NO_OWNER]


def find_tag(owner: int, context: list[int]) -> int:
    """Hash an owner and a context, its last token first."""
    return mix64(owner, *reversed(context)) or 1


def count_follower(followers: NDArray[np.int64], token: int) -> None:
    """Count a token among the packed followers of its context, (MOST_FOLLOWERS,). A new token
    replaces the last one if all places are taken."""
    known = [packed for packed in followers.tolist() if packed]
    held = [packed & (1 << BITS) - 1 for packed in known]
    if token in held:
        followers[held.index(token)] += 1 << BITS
    else:
        followers[min(len(known), len(followers) - 1)] = 1 << BITS | token


def draft(table: DraftTable, slots: Slots, rows: torch.Tensor, tokens: int) -> torch.Tensor:
    """Draft the next tokens of each row's slot. rows: (rows,) int64 slots. Returns (rows, tokens)
    int64."""
    drafts = [_draft_row(table, slots, slot, tokens) for slot in rows.tolist()]
    return torch.tensor(drafts, dtype=torch.int64, device=rows.device).view(len(rows), tokens)


def _draft_row(table: DraftTable, slots: Slots, slot: int, tokens: int) -> list[int]:
    owners, length = list_owners(slots, slot), int(slots.lengths[slot])
    path = slots.texts[slot, max(0, length - LONGEST) : length].tolist()
    drafted: list[int] = []
    while len(drafted) < tokens:
        if not (known := _find(table, owners, path)):
            break
        most = max(known, key=lambda packed: packed >> BITS)
        drafted.append(most & (1 << BITS) - 1)
        path = [*path, drafted[-1]][-LONGEST:]
    last = path[-1] if path else 0
    return drafted + [last] * (tokens - len(drafted))


def _find(table: DraftTable, owners: list[int], path: list[int]) -> list[int]:
    """Return the packed followers of the longest known context at the end of a path, of equal ones
    the program's."""
    for order, owner in product(range(len(path), 0, -1), owners):
        tag = find_tag(owner, path[-order:])
        place = tag & len(table.tags) - 1
        if int(table.tags[place]) == tag:
            return [packed for packed in table.followers[place].tolist() if packed]
    return []
