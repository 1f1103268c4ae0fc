"""What is read of a level-wise search at its fixed points: certainty, and what it would answer.

With a policy a reading is what it is asked by. Without one the fixed points are only remembered,
and read when the run is over: what a policy could have been told, for calibration to replay.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from flashedge.certainty.history import Reading
from flashedge.search.level_state import FixedPoint, LevelState
from flashedge.search.selection import choose

if TYPE_CHECKING:
    from flashedge.search.level import LevelSearch

MAX_NOTED = 256


def read(search: LevelSearch, state: LevelState) -> LevelState:
    """Take a reading of `complete`, whose answers are grouped."""
    reading = _reading(search, state, state.tree.committed_tokens)
    return replace(state, history=(*state.history, reading))


def noted(search: LevelSearch, state: LevelState) -> LevelState:
    """Without a policy: remember this fixed point, whose answers are grouped at the end."""
    if search.policy is not None or not state.complete or len(state.passed) >= MAX_NOTED:
        return state
    here = FixedPoint(
        complete=len(state.complete),
        rollouts=len(state.rollouts),
        tokens=state.tree.committed_tokens,
    )
    return replace(state, passed=(*state.passed, here))


def reread(search: LevelSearch, state: LevelState) -> LevelState:
    """Take the readings of the fixed points that were passed: the first at each knob, as a policy
    could have been told. Answers of a prefix of the paths group as those of all do."""
    readings: list[Reading] = []
    for at in state.passed:
        then = replace(
            state,
            complete=state.complete[: at.complete],
            rollouts=state.rollouts[: at.rollouts],
        )
        if not readings or search.knob(then) > readings[-1].knob:
            readings.append(_reading(search, then, at.tokens))
    return replace(state, history=(*state.history, *readings), passed=())


def _reading(search: LevelSearch, state: LevelState, tokens: int) -> Reading:
    tree = state.tree
    chosen = choose(tree, state.complete, how=search.aggregate, by=search.selection)
    return Reading(
        knob=search.knob(state),
        tokens=tokens,
        answers=sum(tree[n].answer is not None for n in search.counted(state)),
        measures=search.measures(state),
        answer=chosen.answer,
    )
