"""Takes the checkpoints of a search that votes.

A run with a policy takes one whenever the policy is asked. A run without one only remembers where
it would have been asked, and takes these checkpoints at its end: calibration replays policies on
them, and grouping answers only once costs nothing extra.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from flashedge.certainty.history import Checkpoint
from flashedge.search.answer_choice import choose_answer
from flashedge.search.voting_state import PendingCheckpoint, VotingState

if TYPE_CHECKING:
    from flashedge.search.voting import VotingSearch

MAX_PENDING = 256
S = TypeVar("S", bound=VotingState)


def take_checkpoint(search: VotingSearch[S], state: S) -> S:
    """Add a checkpoint of `complete`, whose answers are grouped."""
    checkpoint = _measure(search, state, state.tokens)
    return replace(state, history=(*state.history, checkpoint))


def remember_checkpoint(search: VotingSearch[S], state: S) -> S:
    """Without a policy: remember this point, whose answers are grouped at the end of the run."""
    full = len(state.pending_checkpoints) >= MAX_PENDING
    if search.policy is not None or not state.complete or full:
        return state
    pending = PendingCheckpoint(
        complete=len(state.complete),
        rollouts=len(state.rollouts),
        tokens=state.tokens,
    )
    return replace(state, pending_checkpoints=(*state.pending_checkpoints, pending))


def take_pending_checkpoints(search: VotingSearch[S], state: S) -> S:
    """Take the checkpoints that were only remembered, the first at each progress.

    They equal those that a policy would have seen: grouping is by order, so the groups of the
    first paths do not depend on the later ones.
    """
    checkpoints: list[Checkpoint] = []
    for pending in state.pending_checkpoints:
        then = replace(
            state,
            complete=state.complete[: pending.complete],
            rollouts=state.rollouts[: pending.rollouts],
        )
        if not checkpoints or search.progress(then) > checkpoints[-1].progress:
            checkpoints.append(_measure(search, then, pending.tokens))
    return replace(state, history=(*state.history, *checkpoints), pending_checkpoints=())


def _measure(search: VotingSearch[S], state: S, tokens: int) -> Checkpoint:
    """Answers without a box count for nothing here: a later path may have a box, and then they
    are none."""
    if state.is_unboxed:
        state = replace(state, tree=state.tree.set_answers(dict.fromkeys(state.complete)))
    tree = state.tree
    finish = choose_answer(tree, state.complete, how=search.aggregate, by=search.selection)
    return Checkpoint(
        progress=search.progress(state),
        tokens=tokens,
        answers=sum(tree[n].answer is not None for n in search.measured_paths(state)),
        measures=search.measures(state),
        answer=finish.answer,
    )
