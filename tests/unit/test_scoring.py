"""Aggregates of step scores."""

from __future__ import annotations

import pytest

from flashedge.errors import RequestError
from flashedge.runtime import spec
from flashedge.search.scoring import AGGREGATES, aggregate


@pytest.mark.parametrize(
    ("how", "score"), [("last", 0.5), ("min", 0.2), ("prod", 0.08), ("mean", 0.5)]
)
def test_aggregate(how: str, score: float) -> None:
    assert aggregate((0.8, 0.2, 0.5), how) == pytest.approx(score)
    assert aggregate((0.7,), how) == pytest.approx(0.7)
    assert aggregate((), how) == 0.0


def test_unknown_aggregate_names_the_known() -> None:
    with pytest.raises(RequestError, match="last, min, prod, mean") as error:
        aggregate((0.5,), "max")
    assert error.value.param == "aggregate"


def test_a_run_may_ask_for_each() -> None:
    assert set(spec.AGGREGATES) == set(AGGREGATES)
