"""What users read about results that can't be compared token for token."""

from __future__ import annotations

from typing import Any

import pytest

from flashedge.cli.ps import describe_kernels, describe_replays
from flashedge.cli.solve.result import warn_about

INVARIANT = {"batch_invariant": True, "invariant_tokens": 2048, "max_logprob_difference": 0.0}


@pytest.mark.parametrize(
    ("self_test", "told"),
    [
        (
            INVARIANT,
            "kernels are batch-invariant, tested up to 2048 tokens: the same request gives the"
            " same tree",
        ),
        (
            {"batch_invariant": False, "max_logprob_difference": 0.0312},
            "kernels are not batch-invariant (log-probabilities differ by up to 0.031): the same"
            " request can give another tree; on a card, set batch_invariant",
        ),
        ({}, None),
    ],
)
def test_ps_tells_what_the_self_test_found(self_test: dict[str, Any], told: str | None) -> None:
    assert describe_kernels(self_test) == told


def test_ps_tells_what_deterministic_requests_cost() -> None:
    counts = {
        "verified_tokens": 120,
        "rollbacks": 1,
        "recomputed_tokens": 14,
        "verify_passes": 8,
        "prefill_passes": 2,
        "pass_us": 1_500_000,
    }
    assert describe_replays({"view": {"replays": counts}}) == (
        "deterministic requests: 120 tokens verified, 1 rollback (14 tokens drawn again),"
        " 10 passes in 1.5 s"
    )
    assert describe_replays({"view": {"replays": {**counts, "verified_tokens": 0}}}) is None
    assert describe_replays({"view": None}) is None


@pytest.mark.parametrize("baseline", [True, False])
@pytest.mark.parametrize("deterministic", [True, False, None])
def test_a_baseline_that_is_not_paired_is_named(
    capfd: pytest.CaptureFixture[str], baseline: bool, deterministic: bool | None
) -> None:
    warn_about({"answer": "4", "baseline": baseline, "deterministic": deterministic})
    said = "not batch-invariant" in capfd.readouterr().err
    assert said == (baseline and deterministic is False)
