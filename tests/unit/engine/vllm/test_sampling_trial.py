"""The trial of the sampling kernel at start. Here PyTorch stands in for the kernel."""

from __future__ import annotations

import pytest
import torch

from flashedge.engine.vllm.inside.sampling import naive
from flashedge.engine.vllm.inside.sampling.trial import ROWS, compare_samplers, load_kernel

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
