"""What the searches share that decide after each step which paths go on, and with how many
children."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flashedge.search.level import LevelSearch
from flashedge.search.level_state import BUDGET, NOTHING, LevelState, Move, Shares
from flashedge.search.tree import NodeStatus
from flashedge.types import Granularity, NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepwise(LevelSearch):
    """Levels of one step; a level is as wide as paths are missing, so no path is lost.

    branching: children per kept path (search-and-learn calls it beam_width); max_step_tokens:
    longest step; max_steps: depth of the last step, which runs to the end of the path.
    Ref: arXiv 2509.00195 §3.1. Departures, for all of them: a path that ends is a completion and
    the others share the remaining width; duplicates are dropped before keeping.
    """

    branching: int = 4
    max_step_tokens: int = 256
    max_steps: int = 40

    @abstractmethod
    def keep(self, state: LevelState, paths: Sequence[NodeId], width: int) -> Shares:
        """Who goes on. paths: at least one, different, best first; their shares sum to `width`,
        each at least 1; who is left out is pruned. Nobody: the search ends here."""

    def family(self, state: LevelState, node: NodeId) -> int:
        """Equal paths are duplicates within one family; here all are one."""
        return 0

    def step_tokens(self, depth: int) -> int:
        """Longest step of the children of a node at `depth`."""
        return self.max_step_tokens

    def granularity(self, state: LevelState, node: NodeId) -> Granularity:
        depth, room = state.tree[node].depth, state.room(node)
        if depth >= self.max_steps or room == 0:
            return NOTHING
        if depth == self.max_steps - 1:
            return Granularity(max_tokens=room, to_end=True)
        return Granularity(max_tokens=min(self.step_tokens(depth), room))

    def ends(self, state: LevelState, node: NodeId) -> bool:
        """Ended by the model, at the last step, or without room: there is nothing to decide."""
        at = state.tree[node]
        stopped = at.segment is not None and at.segment.finish.ends_path
        return stopped or at.depth >= self.max_steps or state.room(node) == 0

    def share(self, state: LevelState) -> int:
        return min(self.branching, self.n - len(state.complete) - state.ended)

    def decide(self, state: LevelState) -> Move:
        """Complete, drop duplicates, keep some, prune the rest; then the next level or the
        vote."""
        state, unique = self.settle(state)
        width = self.width_left(state)
        shares = self.keep(state, unique, width) if unique and width else ()
        if not shares:
            return self.exhausted(state)
        kept = {node for node, _ in shares}
        pruned = dict.fromkeys((n for n in unique if n not in kept), NodeStatus.PRUNED)
        state = replace(state, tree=state.tree.mark(pruned))
        if state.over_budget:
            return self.vote(state, cut_by=BUDGET)
        return self.proceed(state, shares)

    def width_left(self, state: LevelState) -> int:
        """Paths that those under way are to bring."""
        return self.n - len(state.complete)

    def exhausted(self, state: LevelState) -> Move:
        """No path is left to go on with."""
        return self.vote(state)

    def settle(self, state: LevelState) -> tuple[LevelState, tuple[NodeId, ...]]:
        """Complete what ended, drop duplicates; the others, best first."""
        ended = tuple(node for node in state.level if self.ends(state, node))
        going = sorted(set(state.level).difference(ended))
        first: dict[tuple[int, str], NodeId] = {}
        for node in going:
            text = state.tree.path_text(node).strip()
            first.setdefault((self.family(state, node), text), node)
        unique = sorted(first.values(), key=lambda node: (-self.score_of(state, node), node))
        tree = state.tree.mark(
            dict.fromkeys(going, NodeStatus.DUPLICATE)
            | dict.fromkeys(unique, NodeStatus.ACTIVE)
            | dict.fromkeys(ended, NodeStatus.COMPLETE)
        )
        return replace(state, tree=tree, complete=(*state.complete, *ended)), tuple(unique)


def evenly(paths: Sequence[NodeId], width: int) -> Shares:
    """The width in equal shares, one more for the first ones."""
    each, extra = divmod(width, len(paths))
    return tuple((node, each + (i < extra)) for i, node in enumerate(paths))
