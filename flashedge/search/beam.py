"""Verifier-guided beam search over steps, until n paths are complete."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flashedge.search.level import NOTHING, LevelSearch, LevelState, Move
from flashedge.search.tree import NodeStatus
from flashedge.types import Granularity, NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Beam(LevelSearch):
    """Levels of one step; a level is as wide as paths are missing, so no path is lost.

    branching: children per kept path (search-and-learn calls it beam_width); max_step_tokens:
    longest step; max_steps: depth of the last step, which runs to the end of the path.
    Ref: search-and-learn's `beam_search`; arXiv 2509.00195 §3.1. Departures: a path that ends is
    a completion and the others share the remaining width; duplicates are dropped before keeping.
    """

    branching: int = 4
    max_step_tokens: int = 256
    max_steps: int = 40

    @property
    def name(self) -> str:
        return "beam"

    def granularity(self, state: LevelState, node: NodeId) -> Granularity:
        depth, room = state.tree[node].depth, state.room(node)
        if depth >= self.max_steps or room == 0:
            return NOTHING
        if depth == self.max_steps - 1:
            return Granularity(max_tokens=room, to_end=True)
        return Granularity(max_tokens=min(self.max_step_tokens, room))

    def ends(self, state: LevelState, node: NodeId) -> bool:
        """Ended by the model, at the last step, or without room: there is nothing to decide."""
        at = state.tree[node]
        stopped = at.segment is not None and at.segment.finish.ends_path
        return stopped or at.depth >= self.max_steps or state.room(node) == 0

    def share(self, state: LevelState) -> int:
        return min(self.branching, self.n - len(state.complete) - state.ended)

    def decide(self, state: LevelState) -> Move:
        """Complete, drop duplicates, keep the best, prune the rest; then the next level or the
        vote."""
        ended = tuple(node for node in state.level if self.ends(state, node))
        going = sorted(set(state.level).difference(ended))
        first: dict[str, NodeId] = {}
        for node in going:
            first.setdefault(state.tree.path_text(node).strip(), node)
        unique = sorted(first.values(), key=lambda node: (-self.score_of(state, node), node))
        complete = (*state.complete, *ended)
        width = self.n - len(complete)
        num_kept = -(-width // self.branching)
        kept, dropped = unique[:num_kept], unique[num_kept:]

        tree = state.tree.mark(
            dict.fromkeys(going, NodeStatus.DUPLICATE)
            | dict.fromkeys(unique, NodeStatus.ACTIVE)
            | dict.fromkeys(ended, NodeStatus.COMPLETE)
        ).mark(dict.fromkeys(dropped, NodeStatus.PRUNED))
        state = replace(state, tree=tree, complete=complete)
        budget = state.limits.token_budget
        if width == 0 or (budget is not None and tree.committed_tokens >= budget):
            return self.vote(state)
        each, extra = divmod(width, len(kept))
        return self.expand(state, [(node, each + (i < extra)) for i, node in enumerate(kept)])
