"""A search that reports when a level of steps begins, and otherwise does what it wraps does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flashedge.search.base import Command, Expand, Lookahead, Result, Search
from flashedge.search.tree import Tree
from flashedge.types import Judges, Limits, NodeId, Problem

OnLevel = Callable[[Tree, tuple[Expand, ...]], None]


@dataclass(frozen=True, slots=True)
class LevelWatch:
    """Implements `search.base.Search`."""

    search: Search[Any]
    on_level: OnLevel
    """Receives the tree and all expansions that begin together."""

    @property
    def name(self) -> str:
        return self.search.name

    @property
    def n(self) -> int:
        return self.search.n

    @property
    def scores_levels(self) -> bool:
        return self.search.scores_levels

    @property
    def judges(self) -> Judges:
        return self.search.judges

    def start(self, problem: Problem, seed: int, limits: Limits) -> tuple[Any, tuple[Command, ...]]:
        return self._report(*self.search.start(problem, seed, limits))

    def tell(self, state: Any, result: Result) -> tuple[Any, tuple[Command, ...]]:
        return self._report(*self.search.tell(state, result))

    def conclude(self, state: Any) -> tuple[Any, tuple[Command, ...]]:
        return self._report(*self.search.conclude(state))

    def lookahead(self, state: Any, node: NodeId) -> Lookahead:
        return self.search.lookahead(state, node)

    def _report(self, state: Any, commands: tuple[Command, ...]) -> tuple[Any, tuple[Command, ...]]:
        expansions = tuple(c for c in commands if isinstance(c, Expand))
        if expansions:
            self.on_level(state.tree, expansions)
        return state, commands
