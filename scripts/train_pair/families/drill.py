"""Unrelated sums, one after the other: `42-26=16.`

This family is for training alone. A word problem has one sum in thirty tokens, so the model learns
arithmetic faster from text that has nothing else.
"""

import random
from dataclasses import replace

from scripts.train_pair.families.base import (
    HIGH,
    LIMIT,
    LOW,
    Move,
    Spec,
    State,
    draw_operand,
    find_equations,
    work_out,
)

SUMS_A_STEP = 2  # sums for each requested step


class Drill:
    """Unrelated sums."""

    name = "drill"

    def make(self, rng: random.Random, steps: int, distractor: bool) -> Spec:
        moves = []
        for _ in range(SUMS_A_STEP * steps):
            top = rng.choice((HIGH, LIMIT))
            first = rng.randint(LOW, top)
            op, second = draw_operand(rng, first, 0, top)
            moves.append(Move("", "", op, (str(first), str(second))))
        text = f"Compute each: {', '.join(move.op.join(move.terms) for move in moves)}."
        return Spec(family=self.name, text=text, moves=tuple(moves))

    def create_state(self, spec: Spec) -> State:
        return State()

    def is_worked_out(self, spec: Spec, state: State) -> bool:
        return state.done == len(spec.moves)

    def render_move(
        self, spec: Spec, state: State, worked: bool = False, slip: int = 0
    ) -> str | None:
        if not 0 <= state.done < len(spec.moves):
            return None
        move = spec.moves[state.done]
        text, value = work_out(int(move.terms[0]), move.op, int(move.terms[1]), worked, slip)
        return None if value < 0 else f"{text}."

    def render_answer(self, spec: Spec, state: State) -> str | None:
        return None if state.value is None else f"Done. The answer is \\boxed{{{state.value}}}."

    def read_step(self, spec: Spec, state: State, text: str) -> State:
        found = find_equations(text)
        if not found:
            return state
        value = int(found[-1].rpartition("=")[2][:6])
        return replace(
            state, done=state.done + 1, value=value, equations=(*state.equations, found[-1])
        )

    def render_mistake(self, rng: random.Random, spec: Spec, state: State) -> str | None:
        return None
