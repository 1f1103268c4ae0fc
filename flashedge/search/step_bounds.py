"""Where the steps and paths of a search end that works step by step."""

from __future__ import annotations

from flashedge.search.voting_state import NOTHING, VotingState
from flashedge.types import Granularity, NodeId


def bound_step(
    state: VotingState, node: NodeId, *, max_step_tokens: int, max_steps: int
) -> Granularity:
    """How far the children of `node` are generated: one step, the last one to the path's end."""
    depth, room = state.tree[node].depth, state.remaining_tokens(node)
    if depth >= max_steps or room == 0:
        return NOTHING
    if depth == max_steps - 1:
        return Granularity(max_tokens=room, to_end=True)
    return Granularity(max_tokens=min(max_step_tokens, room))


def ends_path(state: VotingState, node: NodeId, *, max_steps: int) -> bool:
    """Whether the model ended it, it is the last step, or no token fits."""
    at = state.tree[node]
    stopped = at.segment is not None and at.segment.finish.ends_path
    return stopped or at.depth >= max_steps or state.remaining_tokens(node) == 0
