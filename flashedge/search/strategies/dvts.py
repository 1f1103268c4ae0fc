"""Diverse verifier tree search: independent subtrees, each continued from its best path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from flashedge.search.level_state import LevelState, Shares
from flashedge.search.stepwise import Stepwise
from flashedge.types import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Dvts(Stepwise):
    """n / branching subtrees of `branching` paths each (the last may have fewer).

    The root's children 0 … branching-1 start the first subtree, the next ones the second. A
    subtree never takes width from another: it completes its own share of paths.
    Ref: search-and-learn's `dvts`; arXiv 2509.00195 §3.1 (diverse selection).
    Departures: after a path ends, its subtree continues with the remaining width; a path that
    equals one of another subtree is no duplicate.
    """

    @property
    def name(self) -> str:
        return "dvts"

    def subtree(self, state: LevelState, node: NodeId) -> int:
        """Index of the subtree of `node`."""
        return state.tree.path(node)[0].index // self.branching

    def keep(self, state: LevelState, paths: Sequence[NodeId], width: int) -> Shares:
        done = Counter(self.subtree(state, node) for node in state.complete)
        best: dict[int, NodeId] = {}
        for node in paths:
            best.setdefault(self.subtree(state, node), node)
        return tuple((best[t], self._size(t) - done[t]) for t in sorted(best))

    def family(self, state: LevelState, node: NodeId) -> int:
        return self.subtree(state, node)

    def _size(self, subtree: int) -> int:
        return min(self.branching, self.n - subtree * self.branching)
