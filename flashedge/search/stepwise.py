"""What the searches share that prune and branch after every step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flashedge.search.duplicates import find_unique
from flashedge.search.level import LevelSearch
from flashedge.search.level_state import LevelState, Move, Shares
from flashedge.search.step_bounds import bound_step, ends_path
from flashedge.search.tree import NodeStatus
from flashedge.search.voting_state import BUDGET
from flashedge.types import Granularity, NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepwise(LevelSearch):
    """A search whose levels are one step long. A level has one node for each path that is still to
    be completed.

    Ref: arXiv 2509.00195 §3.1. Departures: a path that ends counts as complete and the others
    share the remaining width; duplicates are dropped before paths are kept.
    """

    branching: int = 4
    """Children per kept path. search-and-learn calls it beam_width."""
    max_step_tokens: int = 256
    """Longest step."""
    max_steps: int = 40
    """Depth of the last step, which runs to the end of the path."""

    @abstractmethod
    def keep(self, state: LevelState, paths: Sequence[NodeId], width: int) -> Shares:
        """Choose the paths to continue, with their numbers of children.

        paths: at least one, all different, best first. The shares are at least 1 each and sum to
        `width`. Paths without a share are pruned; an empty result ends the search.
        """

    def family(self, state: LevelState, node: NodeId) -> int:
        """Equal paths are duplicates if they share a family. Here all paths do."""
        return 0

    def step_tokens(self, depth: int) -> int:
        """Longest step of the children of a node at `depth`."""
        return self.max_step_tokens

    def granularity(self, state: LevelState, node: NodeId) -> Granularity:
        return bound_step(
            state,
            node,
            max_step_tokens=self.step_tokens(state.tree[node].depth),
            max_steps=self.max_steps,
        )

    def ends_path(self, state: LevelState, node: NodeId) -> bool:
        """Whether the model ended it, it is the last step, or no token fits."""
        return ends_path(state, node, max_steps=self.max_steps)

    def max_children(self, state: LevelState) -> int:
        return min(self.branching, self.n - len(state.complete) - state.num_ended)

    def decide(self, state: LevelState) -> Move:
        """Settle the level, keep some paths, prune the rest; then start a level or vote."""
        state, unique = self.settle_level(state)
        width = self.remaining_width(state)
        shares = self.keep(state, unique, width) if unique and width else ()
        if not shares:
            return self.finish_tree(state)
        kept = {node for node, _ in shares}
        pruned = dict.fromkeys((n for n in unique if n not in kept), NodeStatus.PRUNED)
        state = replace(state, tree=state.tree.mark(pruned))
        if state.is_over_budget:
            return self.vote(state, cut_by=BUDGET)
        return self.proceed(state, shares)

    def remaining_width(self, state: LevelState) -> int:
        """Paths that the current tree has yet to complete."""
        return self.n - len(state.complete)

    def finish_tree(self, state: LevelState) -> Move:
        """Continue when no path of the tree can be continued."""
        return self.vote(state)

    def settle_level(self, state: LevelState) -> tuple[LevelState, tuple[NodeId, ...]]:
        """Mark ended paths and duplicates. The second value: the other paths, best first."""
        ended = tuple(node for node in state.level if self.ends_path(state, node))
        unfinished = sorted(set(state.level).difference(ended))
        found = find_unique(state.tree, unfinished, lambda node: self.family(state, node))
        unique = sorted(found, key=lambda node: (-self.path_score(state, node), node))
        tree = state.tree.mark(
            dict.fromkeys(unfinished, NodeStatus.DUPLICATE)
            | dict.fromkeys(unique, NodeStatus.ACTIVE)
            | dict.fromkeys(ended, NodeStatus.COMPLETE)
        )
        return replace(state, tree=tree, complete=(*state.complete, *ended)), tuple(unique)


def split_evenly(paths: Sequence[NodeId], width: int) -> Shares:
    """Split the width into equal shares. The first paths get what is left over."""
    each, extra = divmod(width, len(paths))
    return tuple((node, each + (i < extra)) for i, node in enumerate(paths))
