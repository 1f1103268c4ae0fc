"""Counts and drafts tokens in Triton kernels. They do what their naive twin (`naive`) does, in the
same order, and the host never waits for them.

Counting takes two kernels. The first hashes the context of each token, for each length of context:
these are the items. In the second, one program works on each item. Items with one place would write
over each other, so the program of the first of them does them all, and the others nothing. So the
order is fixed, and the cards of a model that is spread over several draft the same tokens.
"""

import torch
import triton
import triton.language as tl

from flashedge.engine.vllm.inside.draft_table.naive import (
    LONGEST,
    NO_OWNER,
    OWNERS,
    DraftTable,
    Slots,
)
from flashedge.engine.vllm.inside.sampling.fused import _begin_hash, _hash
from flashedge.scheduling.speculation.token_drafts import BITS, MOST_FOLLOWERS

_BITS = tl.constexpr(BITS)
_ONE = tl.constexpr(1 << BITS)
_TOKEN = tl.constexpr((1 << BITS) - 1)
_LONGEST = tl.constexpr(LONGEST)
_FOLLOWERS = tl.constexpr(MOST_FOLLOWERS)
_OWNERS = tl.constexpr(OWNERS)
_NO_OWNER = tl.constexpr(NO_OWNER)
ITEMS = 2048
"""Items at once, of which a kernel compares all. With one number for all steps it is compiled
once."""


def count(table: DraftTable, slots: Slots, spans: torch.Tensor, longest: int) -> None:
    """See `naive.count`. longest: at most ITEMS / (OWNERS * LONGEST)."""
    for part in spans.split(ITEMS // (OWNERS * longest * LONGEST)):
        items = len(part) * OWNERS * longest * LONGEST
        tags = torch.empty(items, dtype=torch.int64, device=spans.device)
        tokens = torch.empty(items, dtype=torch.int32, device=spans.device)
        _hash_contexts[(len(part), OWNERS)](
            tags, tokens, part, slots.texts, slots.texts.stride(0), slots.owners, longest,
            SIZE=triton.next_power_of_2(longest), num_warps=1,
        )  # fmt: skip
        _count_followers[(items,)](
            table.tags, table.followers, len(table.tags) - 1, tags, tokens, items,
            ITEMS=ITEMS, num_warps=4,
        )  # fmt: skip


@triton.jit
def _hash_contexts(tags, tokens, spans, texts, stride, owners, longest, SIZE: tl.constexpr):
    span, which = tl.program_id(0), tl.program_id(1)
    slot = tl.load(spans + span * 3).to(tl.int64)
    start, end = tl.load(spans + span * 3 + 1), tl.load(spans + span * 3 + 2)
    owner = tl.load(owners + slot * _OWNERS + which)
    end = tl.where(owner == _NO_OWNER, start, end)
    text = texts + slot * stride
    lane = tl.arange(0, SIZE)
    at = start + lane
    is_counted = (lane < longest) & (at < end)
    token = tl.load(text + at, mask=is_counted, other=0)
    item = ((span * _OWNERS + which) * longest + lane) * _LONGEST
    hashed = _begin_hash(owner) + tl.zeros((SIZE,), tl.uint64)
    for order in tl.static_range(1, _LONGEST + 1):
        is_known = is_counted & (at >= order)
        before = tl.load(text + at - order, mask=is_known, other=0)
        hashed = _hash(hashed, before)
        tag = tl.where(is_known, _make_tag(hashed), 0)
        tl.store(tags + item + order - 1, tag, mask=lane < longest)
        tl.store(tokens + item + order - 1, token, mask=lane < longest)


@triton.jit
def _count_followers(table_tags, table_followers, mask, tags, tokens, items, ITEMS: tl.constexpr):
    own = tl.program_id(0)
    tag = tl.load(tags + own)
    if tag == 0:
        return
    place = tag & mask
    ids = tl.arange(0, ITEMS)
    others = tl.load(tags + ids, mask=ids < items, other=0)
    is_here = (others != 0) & ((others & mask) == place)
    if tl.min(tl.where(is_here, ids, ITEMS), 0) != own:
        return
    lanes = tl.arange(0, _FOLLOWERS)
    held = tl.load(table_tags + place)
    packed = tl.load(table_followers + place * _FOLLOWERS + lanes)
    item = own
    while item < ITEMS:
        tag = tl.load(tags + item)
        token = tl.load(tokens + item).to(tl.int64)
        packed = tl.where(tag == held, packed, 0)
        held = tag
        is_same = (packed != 0) & ((packed & _TOKEN) == token)
        is_known = tl.max(is_same.to(tl.int32), 0) > 0
        taken = tl.sum((packed != 0).to(tl.int32), 0)
        free = tl.where(is_known, _FOLLOWERS, tl.minimum(taken, _FOLLOWERS - 1))
        packed = tl.where(is_same, packed + _ONE, packed)
        packed = tl.where(lanes == free, token | _ONE, packed)
        item = tl.min(tl.where(is_here & (ids > item), ids, ITEMS), 0)
    tl.store(table_tags + place, held)
    tl.store(table_followers + place * _FOLLOWERS + lanes, packed)


def draft(table: DraftTable, slots: Slots, rows: torch.Tensor, tokens: int) -> torch.Tensor:
    """See `naive.draft`."""
    drafts = torch.empty(len(rows), tokens, dtype=torch.int64, device=rows.device)
    _draft[(len(rows),)](
        drafts, table.tags, table.followers, len(table.tags) - 1, rows, slots.texts,
        slots.texts.stride(0), slots.lengths, slots.owners,
        COUNT=tokens, num_warps=1,
    )  # fmt: skip
    return drafts


@triton.jit
def _draft(
    drafts, table_tags, table_followers, mask, rows, texts, stride, lengths, owners,
    COUNT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot = tl.load(rows + row)
    length = tl.load(lengths + slot)
    end = texts + slot * stride + length
    first = tl.load(end - 1, mask=length > 0, other=0)
    second = tl.load(end - 2, mask=length > 1, other=0)
    third = tl.load(end - 3, mask=length > 2, other=0)
    lanes = tl.arange(0, _FOLLOWERS)
    is_known = True
    for at in range(COUNT):
        longest, tag = 0, tl.full((), 0, tl.int64)
        for which in tl.static_range(_OWNERS):
            owner = tl.load(owners + slot * _OWNERS + which)
            most = tl.where(owner == _NO_OWNER, 0, length + at)
            hashed = _begin_hash(owner)
            for order in tl.static_range(1, _LONGEST + 1):
                hashed = _hash(hashed, first if order == 1 else second if order == 2 else third)
                found = _make_tag(hashed)
                is_held = (tl.load(table_tags + (found & mask)) == found) & (most >= order)
                tag = tl.where(is_held & (order > longest), found, tag)
                longest = tl.where(is_held, tl.maximum(longest, order), longest)
        is_known = is_known & (longest > 0)
        packed = tl.load(table_followers + (tag & mask) * _FOLLOWERS + lanes)
        counts = packed >> _BITS
        lane = tl.min(tl.where(counts == tl.max(counts, 0), lanes, _FOLLOWERS), 0)
        token = (tl.sum(tl.where(lanes == lane, packed, 0), 0) & _TOKEN).to(tl.int32)
        third, second = second, first
        first = tl.where(is_known, token, first)
        tl.store(drafts + row * COUNT + at, first.to(tl.int64))


@triton.jit
def _make_tag(hashed):
    tag = (hashed >> 1).to(tl.int64)
    return tl.where(tag == 0, 1, tag)
