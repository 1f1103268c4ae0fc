"""The confidence of tokens and of paths, by hand, and where a path ends for want of it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashedge.certainty.token_confidence import (
    BOTTOM,
    LOWEST,
    MEAN,
    MEANS,
    TAIL,
    find_threshold,
    measure_confidence,
    measure_path,
)
from flashedge.engine.base import Chunk
from flashedge.runtime.drive.segments import ConfidenceStop
from flashedge.types import ConfidenceRule, FinishReason

PATH = (4.0, 2.0, 6.0, 8.0, 1.0)


def test_a_token_is_sure_where_its_likeliest_are_improbable() -> None:
    even = [math.log(1 / 20)] * 20
    assert measure_confidence(even) == pytest.approx(math.log(20))
    peaked = [math.log(0.98), *[math.log(0.001)] * 19]
    assert measure_confidence(peaked) == pytest.approx(
        -(math.log(0.98) + 19 * math.log(0.001)) / 20
    )


def test_what_a_grammar_forbids_is_left_out() -> None:
    forbidden = [-math.inf] * 18
    two = measure_confidence([math.log(0.9), math.log(0.1), *forbidden])
    assert two == pytest.approx(-(math.log(0.9) + math.log(0.1)) / 2)
    for alone in ([0.0, *forbidden], forbidden):
        assert measure_confidence(alone) == 0.0, "no choice"
    choices = (4.0, 0.0, 2.0, 0.0, 0.0, 6.0)
    for by in MEANS:
        assert measure_path(choices, 2, by) == measure_path((4.0, 2.0, 6.0), 2, by)
    assert measure_path((0.0, 0.0), 2, LOWEST) == 0.0


@pytest.mark.parametrize(
    ("by", "window", "expected"),
    [
        (LOWEST, 2, 3.0),  # of 3, 4, 7, 4.5
        (LOWEST, 5, 4.2),
        (LOWEST, 2048, 4.2),  # a path that is shorter is one group
        (TAIL, 2, 4.5),
        (MEAN, 2, 4.2),
        (BOTTOM, 2, 3.0),  # the tenth of four groups is one
    ],
)
def test_a_path_is_as_sure_as_its_groups(by: str, window: int, expected: float) -> None:
    assert measure_path(PATH, window, by) == pytest.approx(expected)
    assert measure_path((), window, by) == 0.0


def test_the_lowest_tenth_of_many_groups_is_averaged() -> None:
    assert measure_path(tuple(map(float, range(1, 31))), 1, BOTTOM) == 2.0, "1, 2, 3"


def test_the_threshold_is_a_percentile() -> None:
    """As NumPy's: between two values by a straight line."""
    values = [5.0, 1.0, 3.0, 4.0, 2.0]
    assert [find_threshold(values, keep) for keep in (1.0, 0.75, 0.5, 0.1)] == pytest.approx(
        [1.0, 2.0, 3.0, 4.6]
    )
    assert find_threshold([7.0], 0.3) == 7.0


@given(
    values=st.lists(st.floats(0, 20), min_size=1, max_size=60),
    sizes=st.lists(st.integers(1, 7), min_size=1),
    window=st.integers(1, 12),
    least=st.floats(0, 20),
)
def test_a_stream_is_cut_at_one_token_however_it_is_divided(
    values: list[float], sizes: list[int], window: int, least: float
) -> None:
    """And what is cut has a lower confidence than the threshold, what is not has none."""
    rule = ConfidenceRule(window=window, least=least)

    def read(divided: list[list[float]]) -> tuple[list[float], FinishReason | None]:
        stop, kept = ConfidenceStop(rule), []
        for part in divided:
            tokens = tuple(range(len(part)))
            cut = stop.cut(Chunk(token_ids=tokens, logprobs=tuple(part), confidences=tuple(part)))
            assert len(cut.token_ids) == len(cut.logprobs) == len(cut.confidences)
            kept += cut.confidences
            if cut.finish is not None:
                return kept, cut.finish
        return kept, None

    parts, rest = [], values
    while rest:
        size = sizes[len(parts) % len(sizes)]
        parts.append(rest[:size])
        rest = rest[size:]
    kept, finish = read(parts)
    assert (kept, finish) == read([values])
    if finish is FinishReason.UNSURE:
        assert measure_path(kept, window, LOWEST) < least
    else:
        assert kept == values
        assert sum(map(bool, values)) < window or measure_path(values, window, LOWEST) >= least
