"""Which drafted rows are worth their time, by measured steps."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashedge.scheduling.speculation.step_costs import EXPLORE, StepCosts, cut_drafts

COST = st.floats(1e-4, 0.1)
STEP = st.tuples(st.integers(1, 64), st.integers(0, 64), st.floats(1e-5, 100.0))


def time_step(costs: tuple[float, ...], sequences: int, rows: int) -> float:
    """costs: base, per sequence, per drafted row, and for having any."""
    return costs[0] + sequences * costs[1] + rows * costs[2] + (rows > 0) * costs[3]


def measure(costs: tuple[float, ...], *, noise: float = 0.0, busy: float = 1.0) -> StepCosts:
    """Note steps of up to 16 sequences, half of them with up to 24 drafted rows. busy: how many
    times as long each hundredth step takes."""
    found, draw = StepCosts(), random.Random(1)
    for step in range(1, 641):
        sequences, rows = draw.randint(1, 16), draw.choice((0, draw.randint(1, 24)))
        factor = draw.uniform(1 - noise, 1 + noise) * (1.0 if step % 100 else busy)
        found.note(sequences, rows, time_step(costs, sequences, rows) * factor)
    return found


@pytest.mark.parametrize(
    "costs", [(5e-3, 1e-3, 5e-4, 1e-3), (0.2, 2e-3, 8e-3, 1e-2), (1e-3, 4e-4, 4e-4, 0.0)]
)
def test_costs_are_found_despite_noise_and_a_busy_machine(costs: tuple[float, ...]) -> None:
    found = measure(costs, noise=0.1, busy=1000.0)
    whole_s = time_step(costs, 8, 12)
    for one, true, count in zip(found._fit, costs, (1, 8, 12, 1), strict=True):
        assert abs(one - true) * count < 0.1 * whole_s


@given(
    st.tuples(COST, COST, COST, COST),
    st.integers(1, 40),
    st.lists(st.floats(0.0, 1.0), max_size=40),
)
def test_the_worthy_rows_draw_most_tokens_a_second(
    fit: tuple[float, ...], sequences: int, chances: list[float]
) -> None:
    chances.sort(reverse=True)
    costs = StepCosts(_fit=fit, _undrafted=0)
    counts = range(len(chances) + 1)
    rates = [(sequences + sum(chances[:n])) / time_step(fit, sequences, n) for n in counts]
    worthy = costs.count_worthy(sequences, chances)
    assert rates[worthy] == pytest.approx(max(rates), rel=1e-9)
    least = costs.find_least_chance(sequences)
    assert all(chance >= least * (1 - 1e-9) for chance in chances[:worthy])


@pytest.mark.parametrize("sequences", [1, 4, 16])
def test_nothing_is_drafted_where_a_row_takes_as_long_as_a_step(sequences: int) -> None:
    costs = measure((1e-6, 1e-3, 1e-3, 1e-6))
    assert costs.count_worthy(sequences, [0.95] * 8) == 0
    assert costs.find_least_chance(sequences) == pytest.approx(1.0, rel=0.05)


@given(st.lists(STEP, min_size=16, max_size=64))
def test_no_cost_is_negative_whatever_was_measured(steps: list[tuple[int, int, float]]) -> None:
    costs = StepCosts()
    for step in steps:
        costs.note(*step)
    assert min(costs._fit) >= 0


# ---------------------------------------------------------------- how many rows a step computes


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


def test_exploring_goes_on_until_a_step_with_drafted_rows_counts() -> None:
    costs, seen = StepCosts(), []
    for _ in range(2):
        seen.append(costs.is_exploring)
        costs.note(16, 4, 0.007)  # the first of its size does not count
    assert [*seen, costs.is_exploring] == [True, True, False]
