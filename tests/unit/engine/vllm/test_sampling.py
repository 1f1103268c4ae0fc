"""Drawing tokens: min-p, ranks, and the kernel's trial at start."""

from __future__ import annotations

import pytest
import torch

from flashedge.engine.vllm.inside.sampling import naive
from flashedge.engine.vllm.inside.sampling.drawer import ROWS, compare_samplers, load_kernel
from flashedge.engine.vllm.inside.sampling.naive import exclude_unlikely
from flashedge.engine.vllm.inside.sampling.on_cpu import count_at_least
from tests.support.sampling_rows import CPU, make_row

VOCAB = 3000


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("min_p", [0.02, 0.3, 1.0])
def test_unlikely_tokens_are_excluded(min_p: float, temperature: float) -> None:
    logits = torch.randn(4, 500, generator=torch.Generator().manual_seed(0)) * 3
    given = logits.clone()
    rows = {1: min_p, 3: 0.0}
    exclude_unlikely(
        logits, [(at, make_row(1, temperature=temperature, min_p=p)) for at, p in rows.items()]
    )
    probabilities = (given[1] / temperature).softmax(dim=0)
    kept = probabilities >= min_p * probabilities.max()
    assert 0 < kept.sum() < 500
    assert torch.equal(logits[1].isfinite(), kept)
    assert torch.equal(logits[1][kept], given[1][kept])
    assert torch.equal(logits[[0, 2, 3]], given[[0, 2, 3]])


def test_ranks_are_vllms() -> None:
    """With equal values, and with rows that hold no numbers."""
    random = torch.Generator().manual_seed(0)
    rows = torch.randint(-50, 50, (65, VOCAB), generator=random).float()
    rows[3], rows[4, :10] = float("nan"), float("-inf")
    values = rows.gather(1, torch.randint(VOCAB, (65, 1), generator=random))
    found = count_at_least(rows, values)
    assert found.dtype == torch.int64
    assert torch.equal(found, (rows >= values).sum(-1))
    assert found[3] == 0


def test_a_kernel_is_used_if_it_draws_the_tokens_of_its_twin() -> None:
    def draw_as_the_twin(logits: torch.Tensor, rows: torch.Tensor) -> None:
        naive.sample(logits, list(enumerate(ROWS)), naive.hash_tokens(VOCAB, CPU))

    compare_samplers(draw_as_the_twin, VOCAB, CPU)
    with pytest.raises(RuntimeError, match="where PyTorch draws"):
        compare_samplers(lambda logits, rows: None, VOCAB, CPU)  # it forgets the noise


def test_where_the_kernel_can_not_run_pytorch_draws(caplog: pytest.LogCaptureFixture) -> None:
    """Triton has no compiler for a CPU. The log says so, and the engine starts."""
    pytest.importorskip("triton", reason="Triton has no wheel for this machine")
    assert load_kernel(VOCAB, CPU) is None
    assert "tokens are drawn by PyTorch" in caplog.text
