"""Draws the token of each row in one Triton kernel: temperature, top-k, top-p, noise and argmax.

The kernel draws the tokens of its naive twin (`naive`) and never makes the host wait. One program
works on one row, so what else is in the batch changes nothing. It reads the row once, some three
times more where top-k or top-p is set, and up to 32 times more where both are.

Float64 is slow on consumer cards. So the noise is first computed in float32, within `TOLERANCE` of
`naive.draw_gumbel`. A token that leads by more than twice the tolerance has won. If the race is
closer, the kernel compares the leaders by their float64 noise, as the twin compares all tokens.

Top-k and top-p need no sort. The kernel draws from all tokens. Then it counts the tokens whose
logits are larger than the winner's, and sums their probability. If that excludes the winner, it
excludes all tokens with smaller logits too, and the kernel draws again from those with larger ones.
Each token keeps its noise, so the last winner is the winner among the tokens that the cut keeps.

Ref: flashinfer.ai, "Sorting-Free GPU Kernels for LLM Sampling", which rejects in the same order.
"""

import torch
import triton
import triton.language as tl

from flashedge.engine.vllm.inside.sampling.naive import FIELDS

BLOCK = 2048
"""Tokens that a program works on at once, eight for each lane of `WARPS`. Chosen by hand: with one
each the loop takes longer than its work, and with eighty the values do not fit the registers."""
WARPS = 8

TOLERANCE = tl.constexpr(5e-4)
"""Bounds the error of the float32 noise. The error is below a twentieth of it for each of the 2**23
values of the random bits; the rest is for logarithms that are rounded in another way."""
EDGE = tl.constexpr(1e-4)
"""Relative distance to top-p from which the float32 sum of probabilities decides. The sum has a
tenth of that error at most, since a lane adds only one in `BLOCK` of the logits."""
_STEP = tl.constexpr(0x9E3779B97F4A7C15)
_FIELDS = tl.constexpr(FIELDS)
PACKED = tl.constexpr(64)
"""Rows that a program of `_pack_slots` works on."""
_NEAR_ONE = tl.constexpr(0.015625)
"""Distance to 1 below which a series replaces the logarithm, with a relative error under 1e-6."""


def pack_slots(fields: torch.Tensor, slots: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """Describe all rows of a batch to `mark_winners`, without the host. Returns (rows, FIELDS).

    fields: (slots, FIELDS) int64, each slot's as in `naive.pack_rows`, but its seed in place of the
    key. Temperature 0 leaves the slot's rows as they are. slots, last: (rows,) int64, each row's
    slot, and the position of the token before the one that it draws.
    """
    rows = torch.empty(len(slots), FIELDS, dtype=torch.int64, device=slots.device)
    programs = triton.cdiv(len(slots), PACKED.value)
    _pack_slots[(programs,)](rows, fields, slots, last, len(slots), num_warps=1)
    return rows


@triton.jit
def _pack_slots(rows, fields, slots, last, count):
    row = tl.program_id(0) * PACKED + tl.arange(0, PACKED)
    is_row = row < count
    own = fields + tl.load(slots + row, mask=is_row, other=0) * _FIELDS
    seed = tl.load(own + 1, mask=is_row, other=0)
    position = tl.load(last + row, mask=is_row, other=0).to(tl.int64) + 1
    temperature = tl.load(own + 3, mask=is_row, other=0)
    packed = rows + row * _FIELDS
    tl.store(packed, tl.where(temperature == 0, -1, row.to(tl.int64)), mask=is_row)
    key = (_hash(_begin_hash(seed), position) >> 1).to(tl.int64)
    tl.store(packed + 1, key, mask=is_row)
    tl.store(packed + 2, tl.load(own + 2, mask=is_row, other=0), mask=is_row)
    tl.store(packed + 3, temperature, mask=is_row)
    tl.store(packed + 4, tl.load(own + 4, mask=is_row, other=0), mask=is_row)


def mark_winners(logits: torch.Tensor, rows: torch.Tensor) -> None:
    """Set the logit of each row's winner to infinity, in place. rows: see `naive.pack_rows`. One
    with a negative index is left out."""
    vocab = logits.shape[1]
    block = min(BLOCK, triton.next_power_of_2(vocab))
    _mark_winner[(len(rows),)](
        logits, rows, logits.stride(0), vocab, FIELDS=FIELDS, BLOCK=block, num_warps=WARPS
    )


@triton.jit
def _mark_winner(logits, rows, stride, vocab, FIELDS: tl.constexpr, BLOCK: tl.constexpr):
    fields = rows + tl.program_id(0) * FIELDS
    index = tl.load(fields)
    if index < 0:
        return
    row = logits + index * stride
    key = tl.load(fields + 1)
    low, high = (key & 0xFFFFFFFF).to(tl.uint32), ((key >> 32) & 0xFFFFFFFF).to(tl.uint32)
    top_k = tl.load(fields + 2)
    temperature = tl.load(fields + 3).to(tl.float64, bitcast=True).to(tl.float32)
    top_p = tl.load(fields + 4).to(tl.float64, bitcast=True)
    is_cut = (top_k > 0) | (top_p < 1.0)

    peak = float("-inf")
    kth = float("-inf")
    if is_cut:
        peak = _find_peak(row, vocab, temperature, BLOCK)
        if (top_k > 0) & (top_k < vocab) & (top_p < 1.0):
            kth = _find_kth(row, vocab, temperature, peak, top_k, BLOCK)

    bound = float("-inf")  # the tokens ahead of (bound, bound_id) take part
    bound_id = vocab
    winner = 0
    is_outside = 1
    while is_outside > 0:
        winner = _draw(row, vocab, temperature, low, high, bound, bound_id, BLOCK)
        is_outside = 0
        if is_cut:
            bound = tl.div_rn(tl.load(row + winner), temperature)
            bound_id = winner
            ahead, mass, total = _measure(
                row, vocab, temperature, peak, kth, top_k, bound, bound_id, tl.float32, BLOCK
            )
            if tl.abs(mass - top_p * total) <= EDGE * total:
                ahead, mass, total = _measure(
                    row, vocab, temperature, peak, kth, top_k, bound, bound_id, tl.float64, BLOCK
                )
            beyond_k = (top_k > 0) & (ahead >= top_k)
            beyond_p = (top_p < 1.0) & (ahead > 0) & (mass >= top_p * total)
            is_outside = (beyond_k | beyond_p).to(tl.int32)
    tl.store(row + winner, float("inf"))


@triton.jit
def _draw(row, vocab, temperature, low, high, bound, bound_id, BLOCK: tl.constexpr):
    """The token with the largest sum of logit and noise, the first of them if sums are equal.

    Each lane keeps its best token and the second best sum, so that the lanes meet only once."""
    top = tl.full((BLOCK,), float("-inf"), tl.float32)
    second = tl.full((BLOCK,), float("-inf"), tl.float32)
    place = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, vocab, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        scaled = _load(row, ids, vocab, temperature)
        total = scaled + _approximate_noise(_draw_bits(ids, low, high))
        total = tl.where(_is_ahead(scaled, ids, bound, bound_id), total, float("-inf"))
        place = tl.where(total > top, ids, place)
        second = tl.maximum(second, tl.minimum(top, total))
        top = tl.maximum(top, total)
    best = tl.max(top, 0)
    winner = tl.min(tl.where(top == best, place, vocab), 0)
    runner_up = tl.max(tl.where(place == winner, second, top), 0)
    least = best - (2 * TOLERANCE + tl.abs(best) * 9.5367431640625e-07)  # 2**-20: rounding
    if runner_up >= least:
        leader = float("-inf")
        for start in range(0, vocab, BLOCK):
            ids = start + tl.arange(0, BLOCK)
            scaled = _load(row, ids, vocab, temperature)
            bits = _draw_bits(ids, low, high)
            total = scaled + _approximate_noise(bits)
            total = tl.where(_is_ahead(scaled, ids, bound, bound_id), total, float("-inf"))
            if tl.max(total, 0) >= least:
                exact = tl.where(total >= least, scaled + _compute_noise(bits), float("-inf"))
                here = tl.max(exact, 0)
                if here > leader:
                    leader = here
                    winner = tl.min(tl.where(exact == here, ids, vocab), 0)
    return winner


@triton.jit
def _measure(
    row,
    vocab,
    temperature,
    peak,
    kth,
    top_k,
    bound,
    bound_id,
    PRECISION: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Returns how many tokens are ahead of a bound, their mass, and the mass of all top-k tokens.

    A mass is a probability times a factor that is the same for all tokens of the row."""
    ahead = tl.zeros((BLOCK,), tl.int32)
    mass = tl.zeros((BLOCK,), PRECISION)
    above = tl.zeros((BLOCK,), tl.int32)
    total = tl.zeros((BLOCK,), PRECISION)
    for start in range(0, vocab, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        scaled = _load(row, ids, vocab, temperature)
        own = tl.exp(scaled.to(PRECISION) - peak.to(PRECISION))
        is_ahead = _is_ahead(scaled, ids, bound, bound_id)
        ahead += is_ahead.to(tl.int32)
        mass += tl.where(is_ahead, own, 0.0)
        above += (scaled > kth).to(tl.int32)
        total += tl.where(scaled > kth, own, 0.0)
    whole = tl.sum(total, 0).to(tl.float64)
    if kth > float("-inf"):  # `rest` of the tokens with the kth logit belong to the top-k
        rest = top_k - tl.sum(above, 0)
        whole += rest * tl.exp(kth.to(PRECISION) - peak.to(PRECISION)).to(tl.float64)
    return tl.sum(ahead, 0), tl.sum(mass, 0).to(tl.float64), whole


@triton.jit
def _find_peak(row, vocab, temperature, BLOCK: tl.constexpr):
    top = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(0, vocab, BLOCK):
        top = tl.maximum(top, _load(row, start + tl.arange(0, BLOCK), vocab, temperature))
    return tl.max(top, 0)


@triton.jit
def _find_kth(row, vocab, temperature, peak, k, BLOCK: tl.constexpr):
    """Find a value that at least k logits reach and at most k exceed, by bisection over float32.
    `_order` maps all values to integers in the same order."""
    least = -2139095041 + k * 0  # minus infinity's integer, of the type of k
    most = _order(peak).to(tl.int64)
    while least < most:
        middle = (least + most + 1) >> 1
        count = tl.zeros((BLOCK,), tl.int32)
        for start in range(0, vocab, BLOCK):
            scaled = _load(row, start + tl.arange(0, BLOCK), vocab, temperature)
            count += (_order(scaled) >= middle.to(tl.int32)).to(tl.int32)
        reached = tl.sum(count, 0)
        if reached >= k:
            least = middle
        if reached <= k:
            most = tl.where(reached == k, middle, middle - 1)
    bits = least.to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _order(value):
    bits = tl.where(value == 0.0, 0.0, value).to(tl.int32, bitcast=True)  # no negative zero
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _load(row, ids, vocab, temperature):
    """Logits divided by the temperature, with the rounding of PyTorch's division."""
    logits = tl.load(row + ids, mask=ids < vocab, other=float("-inf"))
    return tl.div_rn(logits, temperature)


@triton.jit
def _is_ahead(scaled, ids, bound, bound_id):
    """Whether a token's logit is larger than the bound's, or equal with a smaller id."""
    return (scaled > bound) | ((scaled == bound) & (ids < bound_id))


@triton.jit
def _draw_bits(ids, low, high):
    word = _mix(_mix((ids.to(tl.uint32) * 0x9E3779B1) ^ low) ^ high)
    return (word >> 9).to(tl.int32)


@triton.jit
def _mix(x):
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)


@triton.jit
def _approximate_noise(bits):
    """Compute the noise in float32, by a series where the logarithm would be less exact."""
    uniform = (bits.to(tl.float32) + 0.5) * 1.1920928955078125e-07  # 2**-23
    rest = 1.0 - uniform
    series = rest * (1.0 + rest * (0.5 + rest * 0.3333333333333333))
    return -tl.log(tl.where(rest < _NEAR_ONE, series, -tl.log(uniform)))


@triton.jit
def _compute_noise(bits):
    uniform = (bits.to(tl.float64) + 0.5) * 1.1920928955078125e-07
    return (-tl.log(-tl.log(uniform))).to(tl.float32)


@triton.jit
def _begin_hash(value):
    """Hash the first of several integers, as `search.tree.mix64` does."""
    return _hash((value * 0).to(tl.uint64) + _STEP, value)


@triton.jit
def _hash(hashed, value):
    hashed = (hashed ^ value.to(tl.uint64)) + _STEP
    hashed = (hashed ^ (hashed >> 30)) * 0xBF58476D1CE4E5B9
    hashed = (hashed ^ (hashed >> 27)) * 0x94D049BB133111EB
    return hashed ^ (hashed >> 31)
