"""Drawing tokens by position-keyed noise: both twins' winners, min-p, ranks, the kernel's trial."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashedge.engine.vllm.inside.noise import ROWS, compare_samplers, load_kernel
from flashedge.engine.vllm.inside.sampling import naive, on_cpu
from flashedge.engine.vllm.inside.sampling.naive import IndexedRow, draw_gumbel, hash_tokens
from tests.support.sampling_rows import CPU, make_close_races, make_row

VOCAB, WIDE = 1200, 3000


def make_rows(count: int, **cuts: Any) -> list[IndexedRow]:
    return [(i, make_row(i, temperature=0.7, **cuts)) for i in range(count)]


def find_winners(module: Any, logits: torch.Tensor, rows: list[IndexedRow]) -> list[int]:
    drawn = logits.clone()
    draw = on_cpu.mark_winners if module is on_cpu else naive.sample
    draw(drawn, rows, module.hash_tokens(logits.shape[1], CPU))
    return drawn.argmax(1).tolist()


@pytest.mark.parametrize("cuts", [{"top_p": 0.9}, {"top_k": 20, "top_p": 0.8}, {"top_k": 20}])
def test_the_usual_cuts_need_no_sorted_vocabulary(cuts: Any, monkeypatch: Any) -> None:
    """Peaked rows of a large vocabulary, as models give them, with ties at the last rank."""
    logits = (torch.randn(8, 20 * VOCAB) * 2).round(decimals=1)
    logits[:, :20] += 16
    rows = make_rows(8, **cuts)
    wanted = find_winners(naive, logits, rows)
    monkeypatch.setattr(naive, "truncate", None)
    assert find_winners(on_cpu, logits, rows) == wanted


TOP_K, TOP_P = (0, 1, 5, VOCAB, VOCAB + 1), (1.0, 0.9, 0.1)
CUTS = {"top_k": st.sampled_from(TOP_K), "top_p": st.sampled_from(TOP_P)}
AT_ONCE = st.sampled_from([on_cpu.ELEMENTS, 2 * VOCAB, 1])


@settings(deadline=None)
@given(st.integers(0, 2**32), st.floats(0.01, 30), st.fixed_dictionaries(CUTS), AT_ONCE)
def test_a_cpu_draws_the_twins_tokens(seed: int, spread: float, cuts: Any, at_once: int) -> None:
    torch.manual_seed(seed)
    logits = torch.randn(6, VOCAB) * spread
    logits[3] *= 0.01
    logits[4, 7:] = -math.inf
    rows = make_rows(6, **cuts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(on_cpu, "ELEMENTS", at_once)
        found = find_winners(on_cpu, logits, rows)
    assert found == find_winners(naive, logits, rows)


def test_races_that_32_bits_can_not_decide() -> None:
    rows = make_rows(200)
    logits = make_close_races([row for _, row in rows])
    assert find_winners(on_cpu, logits, rows) == find_winners(naive, logits, rows)


@pytest.mark.parametrize("at_once", [on_cpu.ELEMENTS, 1])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_logits_that_are_no_numbers_end_nothing(
    value: float, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken model gives such, and so does the measurement of a step's memory."""
    logits = torch.randn(3, VOCAB)
    logits[1, 5:] = value
    logits[2] = value
    monkeypatch.setattr(on_cpu, "ELEMENTS", at_once)
    found, wanted = (find_winners(each, logits, make_rows(3)) for each in (on_cpu, naive))
    assert found[0] == wanted[0]
    assert math.isnan(value) or found == wanted, "which token is drawn from no numbers, is open"


def test_no_noise_errs_or_differs_by_more_than_is_allowed_for_all_random_bits() -> None:
    for part in torch.arange(2**23, dtype=torch.int32).view(8, -1):
        uniform = (part.double() + 0.5) / 2**23
        exact = -torch.log(-torch.log(uniform))
        error = (on_cpu.approximate_gumbel(part).double() - exact).abs().max()
        assert error < on_cpu.TOLERANCE / 20
    least, most = (-math.log(-math.log(u)) for u in (0.5 / 2**23, 1 - 0.5 / 2**23))
    assert most - least < on_cpu.SPAN < most - least + 0.1


def test_the_bits_are_those_of_the_twin() -> None:
    keys, vocab = [5, 2**62 + 3, 2**63 - 1], 151_936
    hashes = on_cpu.hash_tokens(vocab, CPU).numpy().view(np.uint32)
    uniform = (on_cpu.draw_bits(keys, hashes).double() + 0.5) / 2**23
    exact = draw_gumbel(keys, hash_tokens(vocab, CPU).unsqueeze(0))
    assert torch.equal(-torch.log(-torch.log(uniform)), exact)


def test_the_noise_is_gumbel_noise_and_independent_of_the_other_rows() -> None:
    hashes, keys = hash_tokens(VOCAB, CPU).unsqueeze(0), [5, 2**62 + 3, *range(6, 204)]
    drawn = draw_gumbel(keys, hashes)
    assert drawn.mean().item() == pytest.approx(0.5772, abs=0.01)
    assert drawn.var().item() == pytest.approx(math.pi**2 / 6, abs=0.02)
    for row, key in enumerate(keys[:3]):
        assert torch.equal(draw_gumbel([key], hashes)[0].float(), drawn[row].float())
    assert not torch.equal(drawn[0], drawn[1])


def test_a_large_batch_is_sampled_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts bound the memory on the device. They change no token, nor the logits of requests
    that are not sampled."""
    torch.manual_seed(1)
    logits = torch.randn(7, VOCAB)
    found = []
    for elements in (naive.ELEMENTS, 3 * VOCAB, 1):
        monkeypatch.setattr(naive, "ELEMENTS", elements)
        found.append(logits.clone())
        rows = [row for row in make_rows(7, top_p=0.9) if row[0] != 4]
        naive.sample(found[-1], rows, hash_tokens(VOCAB, CPU))
    assert all(torch.equal(other, found[0]) for other in found[1:])
    assert [torch.equal(found[0][row], logits[row]) for row in (4, 5)] == [True, False]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("min_p", [0.02, 0.3, 1.0])
def test_unlikely_tokens_are_excluded(min_p: float, temperature: float) -> None:
    logits = torch.randn(4, 500, generator=torch.Generator().manual_seed(0)) * 3
    given = logits.clone()
    cuts = ((1, min_p), (3, 0.0))
    rows = [(at, make_row(1, temperature=temperature, min_p=least)) for at, least in cuts]
    naive.exclude_unlikely(logits, rows)
    probabilities = (given[1] / temperature).softmax(dim=0)
    kept = probabilities >= min_p * probabilities.max()
    assert 0 < kept.sum() < 500
    assert torch.equal(logits[1].isfinite(), kept)
    assert torch.equal(logits[1][kept], given[1][kept])
    assert torch.equal(logits[[0, 2, 3]], given[[0, 2, 3]])


def test_ranks_are_vllms() -> None:
    """With equal values, and with rows that hold no numbers."""
    random = torch.Generator().manual_seed(0)
    rows = torch.randint(-50, 50, (65, WIDE), generator=random).float()
    rows[3], rows[4, :10] = float("nan"), float("-inf")
    values = rows.gather(1, torch.randint(WIDE, (65, 1), generator=random))
    found = on_cpu.count_at_least(rows, values)
    assert torch.equal(found, (rows >= values).sum(-1))
    assert (found.dtype, found[3]) == (torch.int64, 0)


def test_a_kernel_is_used_if_it_draws_the_tokens_of_its_twin() -> None:
    def draw_as_the_twin(logits: torch.Tensor, rows: torch.Tensor) -> None:
        naive.sample(logits, list(enumerate(ROWS)), hash_tokens(WIDE, CPU))

    compare_samplers(draw_as_the_twin, WIDE, CPU)
    with pytest.raises(RuntimeError, match="where PyTorch draws"):
        compare_samplers(lambda logits, rows: None, WIDE, CPU)  # it forgets the noise


def test_where_the_kernel_can_not_run_pytorch_draws(caplog: pytest.LogCaptureFixture) -> None:
    """Triton has no compiler for a CPU. The log says so, and the engine starts."""
    pytest.importorskip("triton", reason="Triton has no wheel for this machine")
    assert load_kernel(WIDE, CPU) is None
    assert "tokens are drawn by PyTorch" in caplog.text
