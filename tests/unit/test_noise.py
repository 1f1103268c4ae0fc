"""Position-keyed noise: which token wins, by all of the vocabulary or by its best part."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flashedge.engine.vllm.inside import noise
from flashedge.engine.vllm.inside.noise import SPAN, gumbel, noisy, token_hashes

CPU = torch.device("cpu")
VOCAB = 1200


def winners(scaled: torch.Tensor, keys: list[int]) -> list[int]:
    """By noise on every token."""
    added = gumbel(keys, token_hashes(scaled.shape[1], CPU).unsqueeze(0))
    return (scaled + added.to(scaled.dtype)).argmax(1).tolist()


@given(
    st.integers(0, 2**32),
    st.floats(0.01, 30),
    st.sampled_from([1, 7, 64, VOCAB - 1, VOCAB]),
    st.sampled_from([0, 5]),
)
def test_the_best_part_decides_as_all_do(
    seed: int, spread: float, candidates: int, top_k: int
) -> None:
    """Peaked rows and flat ones, some of their tokens masked."""
    torch.manual_seed(seed)
    scaled = torch.randn(6, VOCAB) * spread
    scaled[3] = scaled[3] * 0.01
    if top_k:
        least = scaled.topk(top_k, dim=1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < least, -math.inf)
    keys = [seed * 7 + row for row in range(6)]
    found = noisy(scaled, keys, token_hashes(VOCAB, CPU), candidates)
    assert found.argmax(1).tolist() == winners(scaled, keys)


def test_the_span_holds_every_noise() -> None:
    """Of 24 bits, by the formula's own ends."""
    least, most = (-math.log(-math.log(u)) for u in (0.5 / 2**23, 1 - 0.5 / 2**23))
    assert most - least < SPAN < most - least + 0.1
    drawn = gumbel(list(range(64)), token_hashes(VOCAB, CPU).unsqueeze(0))
    assert least <= drawn.min() < drawn.max() <= most


def test_it_is_gumbel_noise() -> None:
    drawn = gumbel(list(range(200)), token_hashes(VOCAB, CPU).unsqueeze(0))
    assert drawn.mean().item() == pytest.approx(0.5772, abs=0.01)
    assert drawn.var().item() == pytest.approx(math.pi**2 / 6, abs=0.02)


def test_it_is_keyed_by_row_alone() -> None:
    """In whatever company a row is drawn."""
    hashes = token_hashes(VOCAB, CPU).unsqueeze(0)
    keys = [5, 2**62 + 3, 77]
    together = gumbel(keys, hashes)
    for row, key in enumerate(keys):
        assert torch.equal(gumbel([key], hashes)[0].float(), together[row].float())
    assert not torch.equal(together[0], together[1])


def test_a_large_batch_is_drawn_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which bounds what it takes on the device, and changes no token; others pass untouched."""
    torch.manual_seed(1)
    logits = torch.randn(7, VOCAB)
    found = []
    for elements in (noise.ELEMENTS, 3 * VOCAB, 1):
        monkeypatch.setattr(noise, "ELEMENTS", elements)
        processor = noise.PositionNoise(cast("Any", None), CPU, False)
        processor._rows = {
            i: noise._Row(seed=i, temperature=0.7, top_k=0, top_p=0.9, prompt_len=3, output=[])
            for i in range(7)
            if i != 4
        }
        found.append(processor.apply(logits.clone()))
    assert all(torch.equal(other, found[0]) for other in found[1:])
    assert torch.equal(found[0][4], logits[4])
    assert not torch.equal(found[0][5], logits[5])
