"""The exits of MCTS together: which are on, and what they say of a state."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flashedge.search.flights import Flight
from flashedge.search.mcts.exits.futile_rollouts import list_futile
from flashedge.search.mcts.exits.futility import FUTILITY, check_aggregate, is_futile
from flashedge.search.mcts.exits.good_reward import REWARD, is_good_enough
from flashedge.search.mcts.exits.weak_branches import is_in_weak_branch
from flashedge.search.mcts.selection import list_children
from flashedge.search.mcts.state import MctsState
from flashedge.types import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Exits:
    """The switches and thresholds. Each exit has a file of its own beside this one.

    The defaults were chosen on 200 calibration problems of the pair of 21 November 2026
    (`scripts/bench/mcts/choose_thresholds.py`): `accept` as the lowest that loses at most half a
    point of the right answers, `futile` as one that loses none; `weak_step` on 80 of them. Scores
    of another verifier mean something else, so choose anew for it.
    """

    positive_exit: bool = False
    accept: float = 0.83
    """Reward of a finished path at which the positive exit ends the search."""
    negative_exit: bool = False
    selective_exit: bool = False
    weak_step: float = 0.95
    """Branches whose first step has less do not count in the selective exit. It lost right answers
    on held-out problems, and saved little more than the strict one."""
    cut_rollouts: bool = False
    futile: float = 0.1
    """τ: a leaf with less is futile."""

    @property
    def test_leaves(self) -> bool:
        """Whether the search ends once no leaf is viable."""
        return self.negative_exit or self.selective_exit

    def check(self, aggregate: str) -> None:
        """Raises RequestError where an exit that is on would be unsound."""
        if self.test_leaves or self.cut_rollouts:
            check_aggregate(aggregate)

    def count_leaves(self, state: MctsState, node: NodeId) -> MctsState:
        """Count the viable leaves after an expansion, if an exit asks for them: `node` is a leaf no
        more, and its children are."""
        if not self.test_leaves:
            return state
        new = sum(self._is_viable(state, child.id) for child in list_children(state.tree, node))
        return replace(state, num_viable=state.num_viable + new - self._is_viable(state, node))

    def find_reason(self, state: MctsState) -> str | None:
        """The `cut_by` of a search that has to end now."""
        if not state.complete:
            return None
        if self.positive_exit and is_good_enough(state.best_reward, self.accept):
            return REWARD
        return FUTILITY if self.test_leaves and not state.num_viable else None

    def is_cut(self, state: MctsState, node: NodeId) -> bool:
        """Whether no rollout may go on from a node."""
        return self.cut_rollouts and bool(state.complete) and self.is_futile(state, node)

    def list_cut(self, state: MctsState) -> tuple[Flight, ...]:
        """The rollouts in flight that may not go on."""
        cuts = self.cut_rollouts and bool(state.complete)
        return list_futile(state.flights, self.futile) if cuts else ()

    def is_futile(self, state: MctsState, node: NodeId) -> bool:
        return is_futile(state.statistics[node].reward, self.futile)

    def _is_viable(self, state: MctsState, leaf: NodeId) -> bool:
        if self.is_futile(state, leaf):
            return False
        tree, statistics = state.tree, state.statistics
        return not (
            self.selective_exit and is_in_weak_branch(tree, statistics, leaf, self.weak_step)
        )
