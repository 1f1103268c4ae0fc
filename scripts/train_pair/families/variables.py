"""Definitions that refer to earlier ones: `Line 4: a = z - 71. z is 93, 93-71=22. a is 22.`

All lines up to the requested name are needed; the lines after it are a distraction. Misconception:
a reference to an earlier line is replaced by the value of the line above, often in a subtraction,
sometimes in an addition.
"""

import random
import re
from dataclasses import replace

from scripts.train_pair.families.base import (
    HIGH,
    LIMIT,
    LONG,
    LOW,
    Move,
    Spec,
    State,
    apply,
    draw_operand,
    find_equations,
    work_out,
)

LETTERS = "abcdefghjkmnpqrstuvwxyz"
BACK = 0.3  # share of lines that refer further back
STALE = {"-": 0.6, "+": 0.35}  # how often the line above is used instead, by the operator

_LINE = re.compile(r"Line (\d+): ([a-z]) = ")
_STATED = re.compile(r"([a-z]) is (\d+)")


class Variables:
    """Lines of definitions, and a question for one name."""

    def __init__(self, name: str = "variables", back: float = BACK) -> None:
        """back: share of the lines that refer further back, where they can."""
        self.name = name
        self.back = back

    def make(self, rng: random.Random, steps: int, distractor: bool) -> Spec:
        extra = rng.randint(1, 3) if distractor else 0
        letters = rng.sample(LETTERS, steps + extra)
        known = {letters[0]: rng.randint(LOW, HIGH)}
        moves = [Move("1", letters[0], "", (str(known[letters[0]]),))]
        loose = ""  # the name, other than the last, that no line has used yet
        for index, letter in enumerate(letters[1:], 1):
            back = self.back if index < steps - 1 else 0.0
            x, op, y = _draw_definition(rng, letters[:index], known, loose, back)
            loose = "" if x == letters[index - 1] else letters[index - 1]
            known[letter] = apply(known[x], op, known[y] if y in known else int(y))
            moves.append(Move(str(index + 1), letter, op, (x, y)))
        target = letters[steps - 1]
        lines = [f"Line {m.key}: {m.word} = {f' {m.op} '.join(m.terms)}." for m in moves]
        text = f"{' '.join(lines)} What is {target}?"
        return Spec(
            family=self.name, text=text, moves=tuple(moves), target=target, careless=steps >= LONG
        )

    def create_state(self, spec: Spec) -> State:
        return State()

    def is_worked_out(self, spec: Spec, state: State) -> bool:
        return spec.target in state.known

    def render_move(
        self, spec: Spec, state: State, worked: bool = False, slip: int = 0
    ) -> str | None:
        if not 0 <= state.done < len(spec.moves):
            return None
        move = spec.moves[state.done]
        head = f"Line {move.key}: {move.word} = {f' {move.op} '.join(move.terms)}."
        if not move.op:
            return f"{head} {move.word} is {int(move.terms[0]) + slip}."
        values, parts = [], [head]
        for term in move.terms:
            if term.isdigit():
                values.append(int(term))
            elif term in state.known:
                values.append(state.known[term])
                parts.append(f"{term} is {values[-1]},")
            else:
                return None
        if not all(0 <= value <= LIMIT for value in values):
            return None
        text, value = work_out(values[0], move.op, values[1], worked, slip)
        return None if value < 0 else " ".join([*parts, f"{text}. {move.word} is {value}."])

    def render_answer(self, spec: Spec, state: State) -> str | None:
        value = state.known.get(spec.target)
        if value is None:
            return None
        return f"{spec.target} is {value}. The answer is \\boxed{{{value}}}."

    def read_step(self, spec: Spec, state: State, text: str) -> State:
        line, stated = _LINE.match(text), _STATED.findall(text)
        if line is None or not stated:
            return state
        value = int(stated[-1][1][:6])
        return replace(
            state,
            done=int(line[1][:4]),
            value=value,
            known={**state.known, line[2]: value},
            equations=(*state.equations, *find_equations(text)),
        )

    def render_mistake(self, rng: random.Random, spec: Spec, state: State) -> str | None:
        if not 0 < state.done < len(spec.moves) or state.value is None:
            return None
        move = spec.moves[state.done]
        if not move.op or not move.terms[1].isdigit():
            return None
        above = spec.moves[state.done - 1].word
        if move.terms[0] == above or rng.random() >= STALE[move.op]:
            return None
        stale = {**state.known, move.terms[0]: state.value}
        return self.render_move(spec, replace(state, known=stale))


def _draw_definition(
    rng: random.Random, names: list[str], known: dict[str, int], loose: str, back: float
) -> tuple[str, str, str]:
    """Draw the first operand, the operator and the second operand of the next line.

    Usually these are the last name and a number. loose: a name that this line has to use, with the
    last. back: the probability that this line refers further back and leaves the last name to the
    next line.
    """
    last = names[-1]
    if loose:
        ops = [op for op in "+-" if LOW <= apply(known[last], op, known[loose]) <= HIGH]
        return last, rng.choice(ops), loose
    if back and len(names) > 1 and rng.random() < back:
        name = rng.choice(names[:-1])
        op, number = draw_operand(rng, known[name])
        value = apply(known[name], op, number)
        if any(LOW <= apply(value, sign, known[last]) <= HIGH for sign in "+-"):
            return name, op, str(number)
    op, number = draw_operand(rng, known[last])
    return last, op, str(number)
