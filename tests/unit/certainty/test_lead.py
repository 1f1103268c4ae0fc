"""The chance that the most frequent answer is likelier than the second."""

from __future__ import annotations

import pytest

from flashedge.certainty.majority import measure_majority


@pytest.mark.parametrize(
    ("answers", "chance"),
    [
        (["a", "a", "a"], 15 / 16),
        (["a", "a", "a", "b"], 26 / 32),
        (["a", "a", "b", "c"], 11 / 16),  # of the others the most frequent counts
        (["a", None, "a", "a", None], 15 / 16),  # who has no answer does not vote
        (["a", "b"], 0.5),
        ([None, "a"], 3 / 4),
        ([None, None], None),
        ([], None),
    ],
)
def test_by_the_counts(answers: list[str | None], chance: float | None) -> None:
    assert measure_majority(answers) == chance


@pytest.mark.parametrize(("first", "second"), [(1, 0), (3, 1), (7, 5), (40, 31)])
def test_it_is_the_part_of_the_distribution_above_one_half(first: int, second: int) -> None:
    answers = ["a"] * first + ["b"] * second
    steps = 20_000
    shares = [(i + 0.5) / steps for i in range(steps)]
    weights = [p**first * (1 - p) ** second for p in shares]
    above = sum(weights[steps // 2 :]) / sum(weights)
    assert measure_majority(answers) == pytest.approx(above, abs=1e-6)
