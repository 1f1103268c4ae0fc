"""What is read of a level-wise search at its checkpoints: certainty, and what it would answer.

With a policy a checkpoint is what it is asked by. Without one the checkpoints are only remembered,
and read when the run is over: what a policy could have been told, for calibration to replay.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from flashedge.certainty.history import Checkpoint
from flashedge.search.answer_choice import choose_answer
from flashedge.search.level_state import LevelState, PendingCheckpoint

if TYPE_CHECKING:
    from flashedge.search.level import LevelSearch

MAX_NOTED = 256


def read(search: LevelSearch, state: LevelState) -> LevelState:
    """Take a checkpoint of `complete`, whose answers are grouped."""
    checkpoint = _checkpoint(search, state, state.tree.committed_tokens)
    return replace(state, history=(*state.history, checkpoint))


def noted(search: LevelSearch, state: LevelState) -> LevelState:
    """Without a policy: remember this checkpoint, whose answers are grouped at the end."""
    if search.policy is not None or not state.complete or len(state.passed) >= MAX_NOTED:
        return state
    here = PendingCheckpoint(
        complete=len(state.complete),
        rollouts=len(state.rollouts),
        tokens=state.tree.committed_tokens,
    )
    return replace(state, passed=(*state.passed, here))


def reread(search: LevelSearch, state: LevelState) -> LevelState:
    """Take the checkpoints of the checkpoints that were passed: the first at each progress, as a policy
    could have been told. Answers of a prefix of the paths group as those of all do."""
    checkpoints: list[Checkpoint] = []
    for at in state.passed:
        then = replace(
            state,
            complete=state.complete[: at.complete],
            rollouts=state.rollouts[: at.rollouts],
        )
        if not checkpoints or search.progress(then) > checkpoints[-1].progress:
            checkpoints.append(_checkpoint(search, then, at.tokens))
    return replace(state, history=(*state.history, *checkpoints), passed=())


def _checkpoint(search: LevelSearch, state: LevelState, tokens: int) -> Checkpoint:
    tree = state.tree
    chosen = choose_answer(tree, state.complete, how=search.aggregate, by=search.selection)
    return Checkpoint(
        progress=search.progress(state),
        tokens=tokens,
        answers=sum(tree[n].answer is not None for n in search.counted(state)),
        measures=search.measures(state),
        answer=chosen.answer,
    )
