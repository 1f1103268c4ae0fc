"""The bundled pair solves every problem that the help texts, the README and the guide show."""

from __future__ import annotations

import pytest

from scripts.bench.daemon import Daemon
from tests.support.examples import find_answer, list_examples

PLACES = {problem: place for place, problem in list_examples()}


@pytest.mark.parametrize("problem", sorted(PLACES))
def test_an_example_is_solved(served: Daemon, problem: str) -> None:
    answer = find_answer(PLACES[problem], problem)
    assert served.solve(problem, "-n", "16", "--seed", "0")["answer"] == answer
