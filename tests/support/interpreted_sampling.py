"""The sampling kernel against its naive twin, in Triton's interpreter.

`tests/unit/engine/vllm/test_fused_sampling.py` runs this file in a process of its own, because
Triton reads TRITON_INTERPRET when it is imported, and vLLM imports it.
"""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from triton.runtime import interpreter
from vllm import SamplingParams

from flashedge.engine.vllm.inside.keys import ARGS_KEY
from flashedge.engine.vllm.inside.noise import SlotNoise
from flashedge.engine.vllm.inside.sampling import fused, naive
from flashedge.engine.vllm.inside.sampling.naive import SampledRow
from tests.support.sampling_rows import CPU, make_close_races, make_row

BITS = 23
_patched: set[int] = set()


def call_quickly(function: interpreter.InterpretedFunction, *args: Any, **kwargs: Any) -> Any:
    """As Triton does, but prepare each module once. At each call it takes nine tenths of the
    time."""
    if id(function.fn.__globals__) not in _patched:
        _patched.add(id(function.fn.__globals__))
        interpreter._patch_lang(function.fn)
    return function.rewrite()(*args, **kwargs)


interpreter.InterpretedFunction.__call__ = call_quickly
LEAST_MARGIN = 1e-9
"""How close a sum of probabilities may come to top-p before rounding decides on which side it is.
Sums of float64 in two orders differ by less than 1e-12."""


def draw(logits: torch.Tensor, rows: list[SampledRow]) -> tuple[list[int], list[int]]:
    indexed = list(enumerate(rows))
    ours, theirs = logits.clone(), logits.clone()
    fused.mark_winners(ours, naive.pack_rows(indexed, CPU))
    naive.sample(theirs, indexed, naive.hash_tokens(logits.shape[1], CPU))
    return ours.argmax(1).tolist(), theirs.argmax(1).tolist()


def is_decided(logits: torch.Tensor, row: SampledRow) -> bool:
    """Whether every token is clearly inside or outside of the row's top-p."""
    if row.top_p >= 1:
        return True
    scaled = logits / torch.tensor(row.temperature, dtype=torch.float32)
    probs = scaled.sort(descending=True).values[: row.top_k or None].softmax(0, torch.float64)
    before = probs.cumsum(0) - probs
    return bool((before[1:] - row.top_p).abs().ge(LEAST_MARGIN).all())


rows = st.builds(
    make_row,
    st.integers(0, 2**62),
    temperature=st.sampled_from([1.0, 0.8, 0.1, 0.003, 3.0]),
    top_k=st.sampled_from([0, 0, 1, 2, 20, 900, 3000]),
    top_p=st.one_of(st.just(1.0), st.floats(0.0, 1.0)),
)

VOCABS, MASKED = st.sampled_from([1, 2, 7, 64, 1000, 2048, 2049]), st.floats(0, 0.99)
SPREADS = st.sampled_from([0.0, 0.1, 1.0, 3.0, 30.0])
KINDS = st.sampled_from(["exact", "duplicates", "one value"])
ROWS = st.lists(rows, min_size=1, max_size=2)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), VOCABS, SPREADS, KINDS, MASKED, ROWS)
def test_the_kernel_draws_the_tokens_of_its_twin(
    seed: int, vocab: int, spread: float, kind: str, masked: float, rows: list[SampledRow]
) -> None:
    """Over vocabularies that fill a block or do not, duplicates, ties and masked tokens."""
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(rows), vocab, generator=random) * spread
    if kind == "duplicates":
        logits = logits.to(torch.bfloat16).float()
    if kind == "one value":
        logits[:] = spread
    gone = torch.rand(logits.shape, generator=random) < masked
    gone[:, vocab // 2] = False
    logits = logits.masked_fill(gone, -math.inf)
    ours, theirs = draw(logits, rows)
    for i, row in enumerate(rows):
        assert ours[i] == theirs[i] or not is_decided(logits[i], row)


def test_races_that_float32_can_not_decide() -> None:
    rows = [make_row(race) for race in range(100)]
    ours, theirs = draw(make_close_races(rows), rows)
    assert ours == theirs


def test_of_equal_sums_the_first_wins() -> None:
    row, vocab = make_row(3), 20_000
    noise = naive.draw_gumbel([row.key], naive.hash_tokens(vocab, CPU).unsqueeze(0))[0]
    values, counts = noise.unique(return_counts=True)
    tied = [(noise == value).nonzero().squeeze(1).tolist() for value in values[counts > 1]]
    assert tied, "another seed has some"
    for first, second, *_ in tied[:2]:
        logits = torch.full((1, vocab), -math.inf)
        logits[0, [first, second]] = 2.0
        assert draw(logits, [row]) == ([first], [first])


def test_other_rows_stay_as_they_are() -> None:
    """Nor other logits of sampled rows, and a row's winner does not depend on its index."""
    logits = torch.randn(5, 300)
    row = make_row(8, top_p=0.9)
    marked = logits.clone()
    fused.mark_winners(marked, naive.pack_rows([(3, row), (1, make_row(4))], CPU))
    changed = (marked != logits).nonzero().tolist()
    assert [index for index, _ in changed] == [1, 3]
    assert math.isinf(marked[3, changed[1][1]])
    alone = logits[3:4].clone()
    fused.mark_winners(alone, naive.pack_rows([(0, row)], CPU))
    assert alone.argmax() == changed[1][1]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 150))
def test_rows_are_packed_on_the_device_as_on_the_host(seed: int, count: int) -> None:
    random = np.random.default_rng(seed)
    slots, last = (torch.from_numpy(random.integers(0, most, count)) for most in (9, 30_000))
    rows = [make_row(int(random.integers(2**63)), top_k=k, top_p=0.9) for k in range(9)]
    fields = naive.pack_rows(list(enumerate(rows)), CPU)
    fields[:, 1] = torch.tensor([row.seed for row in rows])
    fields[4] = 0  # vLLM draws the tokens of this one
    found = fused.pack_slots(fields, slots, last)
    for index, (slot, position) in enumerate(zip(slots.tolist(), last.tolist(), strict=True)):
        row = replace(rows[slot], prompt_len=position + 1)
        if slot == 4:
            assert found[index, 0] == -1
        else:
            assert torch.equal(found[index], naive.pack_rows([(index, row)], CPU)[0])


def test_the_second_runner_draws_by_the_kernel_what_it_draws_without() -> None:
    """Several rows of each request, with all kinds of cuts, and two slots that are not sampled."""
    states: Any = SimpleNamespace(device=CPU, max_num_reqs=8)
    cuts = [(0, 1.0, 0.0), (20, 0.9, 0.0), (0, 0.7, 0.1), (0, 1.0, 0.05), (5, 1.0, 0.0)]
    slots, counts = [6, 0, 3, 7, 1, 2, 4], [3, 1, 8, 2, 4, 2, 1]
    config: Any = SimpleNamespace(
        additional_config={}, model_config=SimpleNamespace(get_vocab_size=lambda: 300)
    )
    noise = SlotNoise(config, states)
    for slot, (k, p, least) in zip(slots, cuts, strict=False):
        args = {"seed": slot, "temperature": 0.8, "top_k": k, "top_p": p, "min_p": least}
        noise.add_request(slot, SamplingParams(extra_args={ARGS_KEY: args}))
    of_rows = torch.tensor(slots).repeat_interleave(torch.tensor(counts))
    context: Any = SimpleNamespace(
        idx_mapping_np=np.array(slots),
        expanded_idx_mapping=of_rows,
        pos=torch.arange(40, 40 + len(of_rows)),
    )
    logits = torch.randn(len(of_rows), 300, generator=torch.Generator().manual_seed(2)) * 3
    expected = noise.apply(logits.clone(), context).argmax(1)
    noise._drawer.kernel = fused.mark_winners
    assert torch.equal(noise.apply(logits.clone(), context).argmax(1), expected)
    assert not torch.equal(expected, logits.argmax(1))


def test_a_row_with_a_negative_index_stays_as_it_is() -> None:
    logits, rows = torch.randn(2, 300), naive.pack_rows([(-1, make_row(1)), (1, make_row(2))], CPU)
    marked = logits.clone()
    fused.mark_winners(marked, rows)
    assert (marked != logits).any(1).tolist() == [False, True]


@triton.jit
def compute_both(approximate, exact, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(approximate + at, fused._approximate_noise(at))
    tl.store(exact + at, fused._compute_noise(at))


def test_the_float32_noise_is_close_for_all_random_bits() -> None:
    block = 1 << 20
    approximate, exact = (torch.empty(1 << BITS) for _ in range(2))
    compute_both[((1 << BITS) // block,)](approximate, exact, BLOCK=block)
    uniform = (torch.arange(1 << BITS, dtype=torch.float64) + 0.5) / 2**BITS
    wanted = -(-uniform.log()).log()
    assert (approximate.double() - wanted).abs().max() < fused.TOLERANCE.value / 20
    assert np.array_equal(exact.numpy(), wanted.float().numpy())


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__, "-q", "-p", "no:cacheprovider"]))
