"""Drawing tokens: min-p, ranks, and the kernel's trial at start."""

from __future__ import annotations

import pytest
import torch

from flashedge.engine.vllm.inside.sampling import naive
from flashedge.engine.vllm.inside.sampling.drawer import ROWS, compare_samplers, load_kernel
from flashedge.engine.vllm.inside.sampling.naive import SampledRow, exclude_unlikely
from flashedge.engine.vllm.inside.sampling.on_cpu import count_at_least


def make_row(min_p: float, temperature: float) -> SampledRow:
    return SampledRow(
        seed=1, temperature=temperature, top_k=0, top_p=1.0, prompt_len=3, output=[], min_p=min_p
    )


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("min_p", [0.02, 0.3, 1.0])
def test_unlikely_tokens_are_excluded(min_p: float, temperature: float) -> None:
    logits = torch.randn(4, 500, generator=torch.Generator().manual_seed(0)) * 3
    given = logits.clone()
    exclude_unlikely(logits, [(1, make_row(min_p, temperature)), (3, make_row(0.0, temperature))])
    probabilities = (given[1] / temperature).softmax(dim=0)
    kept = probabilities >= min_p * probabilities.max()
    assert 0 < kept.sum() < 500
    assert torch.equal(logits[1].isfinite(), kept)
    assert torch.equal(logits[1][kept], given[1][kept])
    for untouched in (0, 2, 3):
        assert torch.equal(logits[untouched], given[untouched])


def test_ranks_are_vllms() -> None:
    """With equal values, and with rows that hold no numbers."""
    random = torch.Generator().manual_seed(0)
    rows = torch.randint(-50, 50, (65, 3000), generator=random).float()
    rows[3], rows[4, :10] = float("nan"), float("-inf")
    drawn = torch.randint(3000, (65, 1), generator=random)
    values = rows.gather(1, drawn)
    found = count_at_least(rows, values)
    assert found.dtype == torch.int64
    assert torch.equal(found, (rows >= values).sum(-1))
    assert found[3] == 0


CPU = torch.device("cpu")
VOCAB = 3000


def draw_as_the_twin(logits: torch.Tensor, rows: torch.Tensor) -> None:
    naive.sample(logits, list(enumerate(ROWS)), naive.hash_tokens(VOCAB, CPU))


def draw_the_most_likely(logits: torch.Tensor, rows: torch.Tensor) -> None:
    """Like a kernel that forgets the noise."""


def test_a_kernel_that_draws_the_twins_tokens_is_used() -> None:
    compare_samplers(draw_as_the_twin, VOCAB, CPU)


def test_a_kernel_that_draws_other_tokens_is_not() -> None:
    with pytest.raises(RuntimeError, match="where PyTorch draws"):
        compare_samplers(draw_the_most_likely, VOCAB, CPU)


def test_where_the_kernel_can_not_run_pytorch_draws(caplog: pytest.LogCaptureFixture) -> None:
    """Triton has no compiler for a CPU. The log says so, and the engine starts."""
    pytest.importorskip("triton", reason="Triton has no wheel for this machine")
    assert load_kernel(VOCAB, CPU) is None
    assert "tokens are drawn by PyTorch" in caplog.text
