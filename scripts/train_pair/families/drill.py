"""Sums one after the other, nothing else: `42-26=16.`

For training alone. A word problem has one sum in thirty tokens; arithmetic is learnt faster where
every token is about it.
"""

from __future__ import annotations

import random
from dataclasses import replace

from scripts.train_pair.families.base import (
    HIGH,
    LOW,
    Move,
    Spec,
    State,
    equations,
    signed,
    work_out,
)

SUMS_A_STEP = 2  # as many sums as this for each step that was asked for


class Drill:
    """Unrelated sums."""

    name = "drill"

    def make(self, rng: random.Random, steps: int, distractor: bool) -> Spec:
        moves = []
        for _ in range(SUMS_A_STEP * steps):
            first = rng.randint(LOW, HIGH)
            op, second = signed(rng, first)
            moves.append(Move("", "", op, (str(first), str(second))))
        text = f"Compute each: {', '.join(move.op.join(move.terms) for move in moves)}."
        return Spec(family=self.name, text=text, moves=tuple(moves))

    def first(self, spec: Spec) -> State:
        return State()

    def worked_out(self, spec: Spec, state: State) -> bool:
        return state.done == len(spec.moves)

    def move(self, spec: Spec, state: State, worked: bool = False, slip: int = 0) -> str | None:
        if not 0 <= state.done < len(spec.moves):
            return None
        move = spec.moves[state.done]
        text, value = work_out(int(move.terms[0]), move.op, int(move.terms[1]), worked, slip)
        return None if value < 0 else f"{text}."

    def answer(self, spec: Spec, state: State) -> str | None:
        return None if state.value is None else f"Done. The answer is \\boxed{{{state.value}}}."

    def read(self, spec: Spec, state: State, text: str) -> State:
        said = equations(text)
        if not said:
            return state
        value = int(said[-1].rpartition("=")[2][:6])
        return replace(
            state, done=state.done + 1, value=value, equations=(*state.equations, said[-1])
        )

    def mistake(self, rng: random.Random, spec: Spec, state: State) -> str | None:
        return None
