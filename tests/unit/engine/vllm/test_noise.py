"""Position-keyed noise: the winning token is the same, whatever part of the vocabulary is drawn."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashedge.engine.vllm.inside.sampling import naive
from flashedge.engine.vllm.inside.sampling.naive import SPAN, add_noise, draw_gumbel, hash_tokens
from flashedge.engine.vllm.inside.sampling.rows import SampledRow

CPU = torch.device("cpu")
VOCAB = 1200


def find_winners(scaled: torch.Tensor, keys: list[int]) -> list[int]:
    """The winners when every token gets noise."""
    added = draw_gumbel(keys, hash_tokens(scaled.shape[1], CPU).unsqueeze(0))
    return (scaled + added.to(scaled.dtype)).argmax(1).tolist()


@settings(deadline=None)
@given(
    st.integers(0, 2**32),
    st.floats(0.01, 30),
    st.sampled_from([1, 7, 64, VOCAB - 1, VOCAB]),
    st.sampled_from([0, 5]),
)
def test_the_candidates_decide_as_the_whole_vocabulary_does(
    seed: int, spread: float, candidates: int, top_k: int
) -> None:
    """Rows are peaked or flat, and some of their tokens are masked."""
    torch.manual_seed(seed)
    scaled = torch.randn(6, VOCAB) * spread
    scaled[3] = scaled[3] * 0.01
    if top_k:
        least = scaled.topk(top_k, dim=1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < least, -math.inf)
    keys = [seed * 7 + row for row in range(6)]
    found = add_noise(scaled, keys, hash_tokens(VOCAB, CPU), candidates)
    assert found.argmax(1).tolist() == find_winners(scaled, keys)


def test_no_two_noises_differ_by_more_than_the_span() -> None:
    """The largest and the smallest noise follow from the formula."""
    least, most = (-math.log(-math.log(u)) for u in (0.5 / 2**23, 1 - 0.5 / 2**23))
    assert most - least < SPAN < most - least + 0.1
    drawn = draw_gumbel(list(range(64)), hash_tokens(VOCAB, CPU).unsqueeze(0))
    assert least <= drawn.min() < drawn.max() <= most


def test_the_noise_is_gumbel_noise() -> None:
    drawn = draw_gumbel(list(range(200)), hash_tokens(VOCAB, CPU).unsqueeze(0))
    assert drawn.mean().item() == pytest.approx(0.5772, abs=0.01)
    assert drawn.var().item() == pytest.approx(math.pi**2 / 6, abs=0.02)


def test_a_rows_noise_does_not_depend_on_the_other_rows() -> None:
    hashes = hash_tokens(VOCAB, CPU).unsqueeze(0)
    keys = [5, 2**62 + 3, 77]
    together = draw_gumbel(keys, hashes)
    for row, key in enumerate(keys):
        assert torch.equal(draw_gumbel([key], hashes)[0].float(), together[row].float())
    assert not torch.equal(together[0], together[1])


def test_a_large_batch_is_sampled_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts bound the memory on the device. They change no token, nor the logits of requests
    that are not sampled."""
    torch.manual_seed(1)
    logits = torch.randn(7, VOCAB)
    found = []
    rows = [
        (i, SampledRow(seed=i, temperature=0.7, top_k=0, top_p=0.9, prompt_len=3, output=[]))
        for i in range(7)
        if i != 4
    ]
    for elements in (naive.ELEMENTS, 3 * VOCAB, 1):
        monkeypatch.setattr(naive, "ELEMENTS", elements)
        sampled = logits.clone()
        naive.sample(sampled, rows, hash_tokens(VOCAB, CPU))
        found.append(sampled)
    assert all(torch.equal(other, found[0]) for other in found[1:])
    assert torch.equal(found[0][4], logits[4])
    assert not torch.equal(found[0][5], logits[5])
