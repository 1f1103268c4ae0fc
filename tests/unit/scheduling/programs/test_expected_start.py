"""When waiting runs are expected to start."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashedge.scheduling.programs.expected_start import RunWork, predict_starts


def steady(rate: float) -> Callable[[int], float]:
    return lambda batch: rate


def work(left: float | None, outputs: int = 1) -> RunWork:
    return RunWork(left_tokens=left, outputs=outputs)


def test_one_after_the_other() -> None:
    starts = predict_starts([work(100)], [work(50), work(30), work(7)], steady(10.0))
    assert starts == pytest.approx([10.0, 15.0, 18.0])


def test_two_share_the_rate_until_the_shorter_one_is_over() -> None:
    """100 and 300 at 5 tokens a second each: the first is over after 20 s, the second has 200
    left, which it shares with the run that starts then."""
    starts = predict_starts([work(100), work(300)], [work(400), work(1)], steady(10.0))
    assert starts == pytest.approx([20.0, 60.0])


def test_a_run_with_more_outputs_draws_more_of_the_rate() -> None:
    """Eight outputs of ten tokens and one of ten are over at the same time."""
    starts = predict_starts([work(80, 8), work(10, 1)], [work(1), work(1)], steady(9.0))
    assert starts == pytest.approx([10.0, 10.0])


def test_where_nothing_runs_the_next_run_starts_now() -> None:
    assert predict_starts([], [work(20), work(1)], steady(10.0)) == pytest.approx([0.0, 2.0])


def test_a_larger_batch_may_be_faster() -> None:
    """Where each sequence draws ten tokens a second however many there are, a run of sixteen
    sequences takes no longer than a run of one."""
    starts = predict_starts([work(30, 1)], [work(320, 16), work(1)], lambda batch: 10.0 * batch)
    assert starts == pytest.approx([3.0, 5.0])


def test_nothing_is_expected_without_a_speed() -> None:
    assert predict_starts([work(1)], [work(1)], None) == [None]


def test_nothing_is_expected_behind_a_run_of_unknown_length() -> None:
    assert predict_starts([work(100), work(None)], [work(1)], steady(10.0)) == [None]
    starts = predict_starts([work(100)], [work(None), work(5)], steady(10.0))
    assert starts == [pytest.approx(10.0), None]


lengths = st.tuples(st.floats(1, 1e5), st.integers(1, 64)).map(lambda pair: work(*pair))


@given(
    running=st.lists(lengths, min_size=1, max_size=8),
    waiting=st.lists(lengths, max_size=20),
    rate=st.floats(0.1, 1e5),
)
def test_starts_follow_the_order_and_the_work(
    running: list[RunWork], waiting: list[RunWork], rate: float
) -> None:
    starts = predict_starts(running, waiting, steady(rate))
    found = [start for start in starts if start is not None]
    assert len(found) == len(waiting)
    assert found == sorted(found)
    everything = sum(run.left_tokens or 0.0 for run in (*running, *waiting))
    assert all(0.0 <= start <= everything / rate * (1 + 1e-9) for start in found)
    quicker = predict_starts(running, waiting, steady(2 * rate))
    assert quicker == pytest.approx([start / 2 for start in found])
