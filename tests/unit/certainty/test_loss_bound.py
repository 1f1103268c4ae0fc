"""The bound on the accuracy that a rule loses: known values, and how often it is wrong."""

from __future__ import annotations

import math

import pytest

from flashedge.certainty.calibration import bound_loss, min_problems


def test_the_fewest_problems_that_show_a_loss() -> None:
    assert [min_problems(loss) for loss in (0.01, 0.05, 0.5)] == [299, 59, 5]
    for loss in (0.005, 0.01, 0.05, 0.2):
        n = min_problems(loss)
        assert bound_loss(0, 0, n) <= loss < bound_loss(0, 0, n - 1)


def test_known_bounds() -> None:
    assert bound_loss(0, 0, 299) == pytest.approx(1 - 0.05 ** (1 / 299))
    assert bound_loss(1, 0, 100) == pytest.approx(0.0466, abs=1e-4)  # Clopper-Pearson
    assert bound_loss(5, 0, 5) == 1.0
    assert bound_loss(0, 9, 300) >= bound_loss(0, 0, 300)  # gains are no proof against losses
    # Tango's score test: (40 - 20 - 1000 d) / sqrt(1000 (2 q + d (1 - d))) = -1.645
    assert bound_loss(40, 20, 1000) == pytest.approx(0.0330, abs=3e-4)


@pytest.mark.parametrize("gain", [0.0, 0.002, 0.01, 0.05])
@pytest.mark.parametrize(("problems", "loss"), [(299, 0.01), (59, 0.05), (150, 0.05)])
def test_a_rule_that_loses_too_much_passes_in_one_of_twenty_at_most(
    problems: int, loss: float, gain: float
) -> None:
    """The exact chance that the bound falls below the true loss."""
    lose = gain + loss
    same = 1 - lose - gain
    passed = 0.0
    for lost in range(60):
        for gained in range(60):
            rest = problems - lost - gained
            if rest < 0 or (gained and not gain) or bound_loss(lost, gained, problems) >= loss:
                continue
            chance = math.lgamma(problems + 1) - sum(
                math.lgamma(k + 1) for k in (lost, gained, rest)
            )
            chance += lost * math.log(lose) + rest * math.log(same)
            chance += gained * math.log(gain) if gained else 0.0
            passed += math.exp(chance)
    assert passed <= 0.0515
