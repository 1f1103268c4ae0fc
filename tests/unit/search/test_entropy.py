"""The rule that ends a step before an uncertain token, on entropies that are written by hand."""

from __future__ import annotations

import json
import math

import pytest

from flashedge.search.steps import TOP, EntropyRule, estimate_entropy
from flashedge.types import MAX_STEP_ENTROPY

RULE = EntropyRule(threshold=1.0, min_tokens=2)


def measure_exactly(shares: list[float]) -> float:
    return -sum(p * math.log(p) for p in shares if p > 0)


@pytest.mark.parametrize(
    ("entropies", "before", "kept"),
    [
        ([0.1, 0.2, 0.3], 0, 3),
        ([0.1, 0.2, 1.5, 0.1], 0, 2),
        ([0.1, 0.2, 1.0, 0.1], 0, 4),  # not more than the threshold
        ([9.0, 9.0, 9.0], 0, 2),  # the least length comes first
        ([9.0, 0.1, 0.1], 0, 3),
        ([9.0, 0.1, 0.1], 1, 3),
        ([9.0, 0.1, 0.1], 2, 0),
        ([], 5, 0),
    ],
)
def test_a_step_is_cut_before_the_first_uncertain_token(
    entropies: list[float], before: int, kept: int
) -> None:
    assert RULE.count_kept(entropies, before) == kept


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_the_cut_does_not_depend_on_the_chunks(size: int) -> None:
    entropies = [2.0, 0.3, 0.9, 0.2, 1.7, 2.5, 0.1]
    count = 0
    for start in range(0, len(entropies), size):
        chunk = entropies[start : start + size]
        kept = RULE.count_kept(chunk, count)
        count += kept
        if kept < len(chunk):
            break
    assert count == RULE.count_kept(entropies) == 4


def test_an_estimate_of_few_tokens_is_exact() -> None:
    shares = [0.5, 0.25, 0.125, 0.125]
    assert estimate_entropy([math.log(p) for p in shares]) == pytest.approx(1.75 * math.log(2))
    assert estimate_entropy([0.0, -math.inf]) == 0.0


def test_the_other_tokens_count_as_one() -> None:
    """The estimate is too low by their share times what they do not know of each other."""
    shares = [0.04] * TOP + [0.02] * 10
    found = estimate_entropy([math.log(p) for p in shares])
    assert found == pytest.approx(measure_exactly([0.04] * TOP + [0.2]))
    assert measure_exactly(shares) - found == pytest.approx(0.2 * math.log(10))


def test_no_estimate_is_below_every_threshold() -> None:
    """Else a permitted threshold could never end a step."""
    most = estimate_entropy([-math.log(TOP + 1)] * (TOP + 1))
    assert most == pytest.approx(math.log(TOP + 1))
    assert most > MAX_STEP_ENTROPY


def test_travels_to_an_engine_process() -> None:
    assert EntropyRule.from_json(json.loads(json.dumps(RULE.to_json()))) == RULE
