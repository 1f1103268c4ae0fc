"""How many paths a search draws at once, for which admission keeps room."""

from __future__ import annotations

from typing import Any

import pytest

from flashedge.runtime.request.early_exit import ExitOptions
from flashedge.runtime.request.spec import RunSpec
from flashedge.runtime.request.strategies import count_paths_at_once
from flashedge.types import Problem


@pytest.mark.parametrize(
    ("strategy", "fields", "paths"),
    [
        ("beam", {"n": 16}, 16),
        ("self_consistency", {"n": 16}, 16),
        ("mcts", {"n": 16}, 4),
        ("mcts", {"n": 16, "branching": 2, "options": {"parallel": 3}}, 6),
        ("mcts", {"n": 2, "options": {"parallel": 8}}, 8),
        ("mcts", {"n": 16, "options": {"boost": True}}, 4),
    ],
)
def test_it_is_what_the_strategy_draws_at_once(
    strategy: str, fields: dict[str, Any], paths: int
) -> None:
    spec = RunSpec(problem=Problem.from_text("?"), pair="bundled", strategy=strategy, **fields)
    assert count_paths_at_once(spec) == paths


def test_groups_of_an_early_exit_are_drawn_one_after_the_other() -> None:
    spec = RunSpec(
        problem=Problem.from_text("?"),
        pair="bundled",
        strategy="self_consistency",
        n=64,
        early_exit=ExitOptions(),
    )
    assert 1 < count_paths_at_once(spec) < 64
