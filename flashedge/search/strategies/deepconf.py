"""DeepConf: a vote among the paths of whose tokens the model was sure. Others are ended early.

warm-up (whole paths) --> threshold --> further paths, each ended where it falls below --> vote

The first paths say how sure the model is of this problem. The threshold is the confidence that the
share `keep` of them reaches. A path below it has no vote, and a further path is ended as soon as
one window of its tokens is below. Paths are drawn until their answers agree, which the policy
decides (CONSENSUS).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from flashedge.certainty.measures import CONSENSUS
from flashedge.certainty.token_confidence import LOWEST, find_threshold, measure_path
from flashedge.search.base import Finish
from flashedge.search.level import LevelSearch, LevelState, Move
from flashedge.search.strategies.best_of_n import BestOfN
from flashedge.search.tree import Tree
from flashedge.search.voting import choose_by_scores
from flashedge.types import ConfidenceRule, Granularity, NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepConf(BestOfN):
    """Vote among confident paths, weighed by their confidence.

    With `stops` this is the paper's online algorithm (§3.3, Algorithm 2), without it the offline
    one (§3.2), whose threshold is that of all paths. Ref: arXiv 2508.15260. Departures: the warm-up
    is at most half of the paths, since `n` is small here; where no confident path has an answer,
    all have a vote; answers agree only where two paths vote; a window ends a path only once it is
    whole, as in the published code. The engine learns of that end with the next message of joined
    tokens, so it draws up to 50 ms of further tokens, which nobody receives or counts.
    """

    name: ClassVar[str] = "deepconf"
    scores_levels: ClassVar[bool] = False
    warm_up: int = 16
    """N_init: paths of which none is ended."""
    keep: float = 0.9
    """The share of the warm-up that sets the threshold. The paper has 0.9 and 0.1; of the few paths
    that are usual here, 0.1 would leave one."""
    window: int = 2048
    """Tokens of a group. Shorter paths are one group, and none of them is ended early."""
    by: str = LOWEST
    """How a path's confidence is measured: one of MEANS. Only LOWEST ends paths."""
    stops: bool = True
    """Whether paths are ended early."""

    # ------------------------------------------------------------ what is drawn

    def count_warm_up(self) -> int:
        """Paths that are never ended, before the policy is asked for the first time."""
        return min(self.warm_up, max(1, self.n // 2))

    @property
    def _stops(self) -> bool:
        return self.stops and self.by == LOWEST

    def choose_initial_width(self, state: LevelState) -> int:
        warm_up = self.count_warm_up()
        return warm_up if self._stops else max(warm_up, min(self.n, state.ask_at))

    def choose_granularity(self, state: LevelState, node: NodeId) -> Granularity:
        bound = LevelSearch.choose_granularity(self, state, node)
        drawn = state.complete[: self.count_warm_up()]
        least = 0.0
        if self._stops and len(drawn) == self.count_warm_up():
            least = self._find_threshold(state.tree, drawn)
        rule = ConfidenceRule(window=self.window, least=least)
        return replace(bound, confidence_rule=rule) if bound.max_tokens else bound

    def remember_checkpoint(self, state: LevelState) -> LevelState:
        """A policy can't be asked within the warm-up."""
        state = BestOfN.remember_checkpoint(self, state)
        first = self.count_warm_up()
        late = (moment for moment in state.pending_checkpoints if moment.progress >= first)
        return replace(state, pending_checkpoints=tuple(late))

    def take_segment(self, state: LevelState, node: NodeId) -> Move:
        segment = state.tree[node].segment
        assert segment is not None, "it has just come"
        confidence = measure_path(segment.confidences, self.window, self.by)
        tree = state.tree.set_confidence(node, confidence)
        # dataclass(slots=True) makes a new class, which zero-argument super() does not know.
        return LevelSearch.take_segment(self, replace(state, tree=tree), node)

    # ------------------------------------------------------------ the vote

    def elect(self, tree: Tree, nodes: Sequence[NodeId]) -> Finish:
        least = self._find_threshold(tree, nodes[: self.count_warm_up()] if self._stops else nodes)
        sure = [node for node in nodes if _read_confidence(tree, node) >= least]
        voters = sure if any(tree[node].answer is not None for node in sure) else nodes
        scores = {node: _read_confidence(tree, node) for node in voters}
        return choose_by_scores(tree, scores, by=self.selection)

    def measure(self, tree: Tree, paths: Sequence[NodeId]) -> dict[str, float]:
        values = LevelSearch.measure(self, tree, paths)
        finish = self.elect(tree, paths)
        weights = {vote.answer: vote.weight for vote in finish.votes}
        total = math.fsum(weights.values())
        if finish.answer is None or not total or sum(vote.count for vote in finish.votes) < 2:
            return values
        return {**values, CONSENSUS: weights[finish.answer] / total}

    def _find_threshold(self, tree: Tree, nodes: Sequence[NodeId]) -> float:
        return find_threshold([_read_confidence(tree, node) for node in nodes], self.keep)


def _read_confidence(tree: Tree, node: NodeId) -> float:
    return tree[node].confidence or 0.0
