"""How many drafted rows a step computes, by what the steps before took."""

from collections.abc import Callable

import pytest

from flashedge.scheduling.speculation.step_costs import EXPLORE, StepCosts, cut_drafts

CHANCES = (0.6, 0.4, 0.3)
"""Of the rows of each draft."""


def count_rows(sequences: int, measure: Callable[[int], float], steps: int = 200) -> list[int]:
    """The drafted rows of each step. measure: the seconds of a step with so many drafted rows."""
    costs, found = StepCosts(), []
    for _ in range(steps):
        least = costs.find_least_chance(sequences)
        drafts = [[chance for chance in CHANCES if chance >= least]] * sequences
        found.append(sum(cut_drafts(costs, sequences, 1000, drafts)))
        costs.note(sequences, found[-1], measure(found[-1]))
    return found


@pytest.mark.parametrize("sequences", [1, 4, 16, 64])
def test_rows_that_take_no_time_are_found_though_the_batch_never_changes(sequences: int) -> None:
    rows = count_rows(sequences, lambda rows: 0.007)
    assert rows[-1] == sequences * len(CHANCES)


@pytest.mark.parametrize("sequences", [1, 4, 16, 64])
@pytest.mark.parametrize("drafting_s", [0.0, 0.003])
def test_rows_that_cost_as_much_as_sequences_are_only_explored(
    sequences: int, drafting_s: float
) -> None:
    rows = count_rows(sequences, lambda rows: 0.001 * (sequences + rows) + drafting_s * (rows > 0))
    assert sum(rows[-100:]) <= 100 / EXPLORE * max(4, sequences // 4)
    assert max(rows[-100:]) > 0


def test_rows_are_cut_to_the_likeliest_and_drafts_stay_whole() -> None:
    drafts = [[0.9, 0.5, 0.5], [], [0.7, 0.5], [0.5]]
    assert cut_drafts(StepCosts(), 4, 4, drafts) == [3, 0, 1, 0]
    assert cut_drafts(StepCosts(), 4, 0, drafts) == [0, 0, 0, 0]
    assert cut_drafts(StepCosts(), 4, -1, drafts) == [0, 0, 0, 0]
