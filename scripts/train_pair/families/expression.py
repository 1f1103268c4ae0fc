"""A long sum that is reduced from the left: `42-26=16. Left: 16+64+12.`

Misconception: the sign of a negative number is overlooked, often after a minus, sometimes after a
plus.
"""

import random
import re
from dataclasses import replace

from scripts.train_pair.families.base import (
    HIGH,
    LIMIT,
    LONG,
    LOW,
    NAMES,
    Move,
    Spec,
    State,
    apply,
    draw_operand,
    find_equations,
    work_out,
)

NEGATIVE = 0.14  # share of terms that are written as a negative number
MISREAD = {"-": 0.7, "+": 0.5}  # how often the sign is overlooked, by the operator before it

_LEFT = re.compile(r"Left: (\d+)((?:[-+](?:\d+|\(-\d+\)))+)\.")
_TERM = re.compile(r"[-+](?:\d+|\(-\d+\))")
_RESULT = re.compile(r"=(\d+)\.")


def parse_term(term: str) -> tuple[str, int]:
    """Return the operator and the operand of a signed term: `-(-7)` is plus 7."""
    op, number = term[0], term[1:]
    if number.startswith("("):
        return ("-" if op == "+" else "+"), int(number[2:-1])
    return op, int(number)


class Expression:
    """One sum."""

    name = "expression"

    def make(self, rng: random.Random, steps: int, distractor: bool) -> Spec:
        value = rng.randint(LOW, HIGH)
        terms = [str(value)]
        for _ in range(steps):
            op, number = draw_operand(rng, value)
            value = apply(value, op, number)
            if rng.random() < NEGATIVE:
                terms.append(f"{'-' if op == '+' else '+'}(-{number})")
            else:
                terms.append(f"{op}{number}")
        note = f" {rng.choice(NAMES)} says {rng.randint(LOW, HIGH)}." if distractor else ""
        text = f"Compute {''.join(terms)}.{note}"
        moves = (Move("", "", "", tuple(terms)),)
        return Spec(family=self.name, text=text, moves=moves, careless=steps >= LONG)

    def create_state(self, spec: Spec) -> State:
        return State(left=spec.moves[0].terms, value=int(spec.moves[0].terms[0]))

    def is_worked_out(self, spec: Spec, state: State) -> bool:
        return not state.left

    def render_move(
        self, spec: Spec, state: State, worked: bool = False, slip: int = 0
    ) -> str | None:
        if len(state.left) < 2 or not state.left[0].isdigit():
            return None
        op, number = parse_term(state.left[1])
        return self._reduce(state, op, number, worked, slip)

    def _reduce(self, state: State, op: str, number: int, worked: bool, slip: int) -> str | None:
        first, written = int(state.left[0]), state.left[1]
        if first > LIMIT:
            return None
        text, value = work_out(first, op, number, worked, slip)
        if value < 0:
            return None
        equation = f"{state.left[0]}{written} is {text}" if "(" in written else text
        rest = "".join(state.left[2:])
        return f"{equation}. Left: {value}{rest}." if rest else f"{equation}. Nothing is left."

    def render_answer(self, spec: Spec, state: State) -> str | None:
        return None if state.value is None else f"Done. The answer is \\boxed{{{state.value}}}."

    def read_step(self, spec: Spec, state: State, text: str) -> State:
        stated = (*state.equations, *find_equations(text))
        if left := _LEFT.search(text):
            terms = (left[1][:6], *_TERM.findall(left[2]))
            value = int(left[1][:6])
            return replace(state, done=state.done + 1, value=value, left=terms, equations=stated)
        if "Nothing is left" in text and (results := _RESULT.findall(text)):
            value = int(results[-1][:6])
            return replace(state, done=state.done + 1, value=value, left=(), equations=stated)
        return state

    def render_mistake(self, rng: random.Random, spec: Spec, state: State) -> str | None:
        if len(state.left) < 2 or "(" not in state.left[1]:
            return None
        op, number = parse_term(state.left[1])
        written = state.left[1][0]
        if written == op or rng.random() >= MISREAD[written]:
            return None
        return self._reduce(state, written, number, worked=False, slip=0)
