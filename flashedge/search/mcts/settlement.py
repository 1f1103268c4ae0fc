"""What an expansion tells once all of its nodes are generated and scored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from flashedge.search.duplicates import find_unique
from flashedge.search.mcts.puct import logprob_priors, uniform_priors
from flashedge.search.mcts.selection import list_children
from flashedge.search.mcts.state import MctsState
from flashedge.search.tree import NodeStatus
from flashedge.types import NodeId


def settle_expansion(
    state: MctsState,
    node: NodeId,
    *,
    ends_path: Callable[[NodeId], bool],
    path_score: Callable[[NodeId], float],
    prior: str,
) -> tuple[MctsState, NodeId]:
    """Take the results of the expansion of `node`. Returns the best child too.

    Marks ended paths and duplicates, and notes the rewards and priors of the children. Finished
    siblings take part in the choice of the best, ties to the older one.
    """
    nodes = state.list_new_children(node)
    ended = tuple(child for child in nodes if ends_path(child))
    unfinished = [child for child in nodes if child not in ended]
    tree = state.tree.mark(
        dict.fromkeys(unfinished, NodeStatus.DUPLICATE)
        | dict.fromkeys(find_unique(state.tree, unfinished), NodeStatus.ACTIVE)
        | dict.fromkeys(ended, NodeStatus.COMPLETE)
    )
    children = list_children(tree, node)
    segments = [child.segment for child in children if child.segment is not None]
    uniform = prior == "uniform"
    priors = uniform_priors(len(children)) if uniform else logprob_priors(segments)
    generated = [s for child in nodes if (s := tree[child].segment) is not None]
    known = state.statistics
    changes = {child: replace(known[child], is_closed=True) for child in nodes}
    for child, share in zip(children, priors, strict=True):
        reward = path_score(child.id)
        changes[child.id] = replace(known[child.id], reward=reward, prior=share)
    state = replace(
        state,
        tree=tree,
        statistics=known.update(changes),
        complete=(*state.complete, *ended),
        turn=state.turn + 1,
        taken_tokens=state.taken_tokens + sum(len(s.token_ids) for s in generated),
        frontier=nodes,
        best_reward=max([state.best_reward, *(changes[child].reward for child in ended)]),
    )
    best = min((child.id for child in children), key=lambda child: (-changes[child].reward, child))
    return state, best
