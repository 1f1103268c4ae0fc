"""Outputs that are known: what they hold, what they refuse, and their likelihood."""

from __future__ import annotations

import numpy as np
import pytest

from flashedge.scheduling.lengths.families.log_t import LogT
from flashedge.scheduling.lengths.observed import OutputLengths
from flashedge.scheduling.lengths.request import LengthRequest


def test_outputs_that_share_nothing_count_once_each() -> None:
    lengths = OutputLengths.from_outputs([30, 40, 40], [False, False, True])
    assert lengths.num_outputs == 3
    assert lengths.ended == (30, 40)
    assert OutputLengths.from_outputs([5]).is_censored == (False,)


def test_the_likelihood_counts_a_cut_output_as_longer() -> None:
    distribution = LogT(4.0, 0.3)
    lengths = OutputLengths.from_outputs([50, 60], [False, True])
    expected = distribution.logpdf(np.array(50.0)) + np.log(1 - distribution.cdf(np.array(60.0)))
    assert lengths.compute_log_likelihood(distribution) == pytest.approx(float(expected))


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        OutputLengths.from_outputs([0])
    with pytest.raises(ValueError, match="one length"):
        OutputLengths.from_outputs([1, 2], [True])
    with pytest.raises(ValueError, match="negative weight"):
        OutputLengths(tokens=(3,), is_censored=(False,), weights=(-1.0,))


def test_equal_prompts_have_one_key() -> None:
    def key(**fields: object) -> str:
        return LengthRequest(pair="p", max_tokens=9, **fields).prompt_key  # type: ignore[arg-type]

    assert key(text="a") == key(text="a", prompt_ids=(1, 2))
    assert key(prompt_ids=(1, 2)) == key(prompt_ids=(1, 2))
    assert len({key(text="a"), key(text="b"), key(prompt_ids=(1,)), key(prompt_ids=(2,))}) == 4
    assert LengthRequest(pair="p", max_tokens=9, prompt_ids=(7, 7)).num_prompt_tokens == 2
    assert LengthRequest(pair="p", max_tokens=9, prompt_tokens=5).num_prompt_tokens == 5
    assert LengthRequest(pair="p", max_tokens=9, text="a").num_prompt_tokens is None
