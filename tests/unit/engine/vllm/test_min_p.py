"""Min-p excludes the tokens that are far less likely than the likeliest, as vLLM's does."""

from __future__ import annotations

import pytest
import torch

from flashedge.engine.vllm.inside.sampling.min_p import exclude_unlikely
from flashedge.engine.vllm.inside.sampling.rows import SampledRow


def make_row(min_p: float, temperature: float) -> SampledRow:
    return SampledRow(
        seed=1,
        temperature=temperature,
        top_k=0,
        top_p=1.0,
        prompt_len=3,
        output=[],
        min_p=min_p,
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
