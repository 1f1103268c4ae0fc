"""Diverse verifier tree search: independent subtrees, each continued from its best path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from flashedge.search.level import LevelState, Shares, Stepwise
from flashedge.types import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Dvts(Stepwise):
    """n / branching subtrees of `branching` paths each (the last may have fewer).

    The root's children 0 … branching-1 start the first subtree, the next ones the second. Each
    completes its own share of paths. Ref: search-and-learn's `dvts`; arXiv 2509.00195 §3.1 (diverse
    selection). Departures: after a path ends, its subtree continues with the remaining width; paths
    of two subtrees are never duplicates.
    """

    name: ClassVar[str] = "dvts"

    def family(self, state: LevelState, node: NodeId) -> int:
        return state.tree.path(node)[0].index // self.branching

    def keep(self, state: LevelState, paths: Sequence[NodeId], width: int) -> Shares:
        done = Counter(self.family(state, node) for node in state.complete)
        best: dict[int, NodeId] = {}
        for node in paths:
            best.setdefault(self.family(state, node), node)
        sizes = {t: min(self.branching, self.n - t * self.branching) for t in best}
        return tuple((best[t], sizes[t] - done[t]) for t in sorted(best))
