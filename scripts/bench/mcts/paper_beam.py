"""Beam search as arXiv 2604.00510 compares it with MCTS (App. B, §5.1), for the study alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from flashedge.runtime.request.validation import Request
from flashedge.search.level import LevelState, Move, Shares, Stepwise
from flashedge.search.mcts.exits import REWARD
from flashedge.search.tree import NodeStatus
from flashedge.types import NodeId

KEPT = 8
"""k of the paper's §5.1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperBeam(Stepwise):
    """Keep the k best of all candidates by their accumulated score, finished paths among them. Each
    unfinished one draws `branching` more, so that a level has up to k times `branching`, as the
    first one has. The search ends once all k are finished, or one reaches `accept` (PE).

    `settle_level` drops repeated candidates before they are ranked, so fewer than k may be kept.
    The product's beam counts a path among n as soon as it ends, however good it is. The paper does
    not say how many candidates each beam has; `branching` is that of its Fig. 10 and of our MCTS.
    """

    name: ClassVar[str] = "beam"
    accept: float = math.inf

    def keep(self, state: LevelState, paths: Sequence[NodeId], width: int) -> Shares:
        ranked = sorted((*state.complete, *paths), key=lambda n: (-self.score_path(state, n), n))
        kept = (node for node in ranked[:KEPT] if state.tree[node].status is NodeStatus.ACTIVE)
        return tuple((node, self.branching) for node in kept)

    def count_remaining(self, state: LevelState) -> int:
        return self.n

    def limit_children(self, state: LevelState) -> int:
        return self.branching

    def decide(self, state: LevelState) -> Move:
        ended = [node for node in state.level if self.ends_path(state, node)]
        if any(self.score_path(state, node) >= self.accept for node in ended):
            return self.vote(self.settle_level(state)[0], cut_by=REWARD)
        # dataclass(slots=True) makes a new class, which zero-argument super() does not know.
        return Stepwise.decide(self, state)


def build_paper_beam(spec: Request, accept: float = math.inf) -> PaperBeam:
    return PaperBeam(
        n=KEPT * spec.branching,
        branching=spec.branching,
        max_step_tokens=spec.max_step_tokens,
        max_steps=spec.max_steps,
        aggregate="prod",
        selection="best",
        accept=accept,
    )
