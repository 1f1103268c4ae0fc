"""The teacher whose solutions the generator learns from: right, but careless in long problems.

A generator that learns from perfect solutions and is stopped early errs where it has not learnt
enough, and a verifier of like size and data errs in the same places. Our generator instead learns
*well* from a teacher who makes mistakes of known kinds in problems of many steps: the
misconceptions of each family (`render_mistake`), a carry or borrow that is forgotten now and then,
and a rare slip. So its faults are systematic, as those of real models are: a vote does not cure
them, but a verifier that learnt from right steps can see them. Short problems, which people type,
are solved right.
"""

import random
import re

from scripts.train_pair.families import FAMILIES
from scripts.train_pair.families.base import Spec, State, find_carry
from scripts.train_pair.problems import (
    create_state,
    is_complete,
    is_worked_out,
    read_step,
    render_move,
    render_step,
)

FORGETS_CARRY = 0.08
SLIPS = 0.01
_EQUATION = re.compile(r"(\d+)([-+])(\d+)=\d+[.,]")


def teach(rng: random.Random, spec: Spec, worked_share: float = 0.3) -> list[str]:
    """Write the teacher's solution, one text per step. Each step builds on the stated values.

    If no right step is possible after a mistake (a value would fall below zero), the teacher
    starts again.
    """
    while (steps := _attempt(rng, spec, worked_share)) is None:
        pass
    return steps


def _attempt(rng: random.Random, spec: Spec, worked_share: float) -> list[str] | None:
    state, steps = create_state(spec), list[str]()
    while True:
        worked = rng.random() < worked_share
        text = _render_mistake(rng, spec, state, worked) or render_step(spec, state, worked)
        if text is None:
            return None
        steps.append(text)
        if is_complete(spec, state):
            return steps
        state = read_step(spec, state, text)


def _render_mistake(rng: random.Random, spec: Spec, state: State, worked: bool) -> str | None:
    """Return the teacher's wrong step, or None if he makes no mistake here."""
    if not spec.careless or is_worked_out(spec, state):
        return None
    if text := FAMILIES[spec.family].render_mistake(rng, spec, state):
        return text
    if rng.random() < SLIPS:
        return render_move(spec, state, worked, rng.choice((-10, -2, -1, 1, 2, 10)))
    right = render_move(spec, state)
    sums = _EQUATION.findall(right or "")
    if len(sums) != 1 or worked or rng.random() >= FORGETS_CARRY:
        return None
    a, op, b = sums[0]
    off = find_carry(int(a), op, int(b))
    return render_move(spec, state, slip=off) if off else None
