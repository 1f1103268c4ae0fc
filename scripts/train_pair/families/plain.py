"""Problems in everyday English, and sums: `Dan has 24 nuts and wins 20. How many has he now?`

A step says what changes, then states one equation: `20 more. 24+20=44.` It repeats no verb, since
the model may not know it. Where there are two owners, it first says what the one has: `Ben has 15.
4 fewer. 15-4=11.` Where both may change, they get letters (`pairs.py`). What a person would type
varies without end, so the words of problems are drawn from long lists (`words.py`), some are
invented, and the sentences are built in many ways (`telling.py`, `pairs.py`, `sums.py`). The
teacher makes no mistakes here.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from scripts.train_pair.families.base import LIMIT, Move, Spec, State, find_equations, work_out

LAST = "="  # an operand: the value that was stated last
NUMBER = "{n}"  # in the words of a step: its second operand


@dataclass(frozen=True, slots=True)
class Draft:
    """A problem's text and the equations that solve it."""

    text: str
    moves: tuple[Move, ...]
    """`terms` are numbers, LAST, or `#2` for the value of the second equation."""

    start: int | None = None
    """What LAST is in the first equation."""


CHANGES = {"+": f"{NUMBER} more", "-": f"{NUMBER} fewer"}


def write_change(op: str, number: int, value: str = LAST, owner: str = "") -> Move:
    """Create the move by which an owner gets or loses things.

    value: what there was before. owner: the name, where the step has to say whose value that is.
    """
    word = CHANGES[op]
    if owner:
        has = "have" if owner == "I" else "has"
        word = f"{owner} {has} {value}. {word}" if value.isdigit() else f"{owner}. {word}"
    return write_equation(word, value, op, str(number))


def write_equation(word: str, first: str, op: str, second: str) -> Move:
    """Create the move of one equation, introduced by `word`."""
    return Move("", word, op, (first, second))


class Plain:
    """Problems whose solution is a list of equations."""

    def __init__(self, name: str, draw: Callable[[random.Random], Draft]) -> None:
        """draw: draws a problem. Values may leave [0, LIMIT]; such problems are drawn again."""
        self.name = name
        self.draw = draw

    def make(self, rng: random.Random, steps: int, distractor: bool) -> Spec:
        while True:
            draft = self.draw(rng)
            spec = Spec(
                family=self.name,
                text=draft.text,
                moves=draft.moves,
                start=-1 if draft.start is None else draft.start,
            )
            if self._has_solution(spec):
                return _vary_letters(rng, spec)

    def _has_solution(self, spec: Spec) -> bool:
        state = self.create_state(spec)
        while not self.is_worked_out(spec, state):
            text = self.render_move(spec, state)
            if text is None:
                return False
            state = self.read_step(spec, state, text)
        return state.value is not None and state.value <= LIMIT

    def create_state(self, spec: Spec) -> State:
        return State(value=None if spec.start < 0 else spec.start)

    def is_worked_out(self, spec: Spec, state: State) -> bool:
        return state.done >= len(spec.moves)

    def render_move(
        self, spec: Spec, state: State, worked: bool = False, slip: int = 0
    ) -> str | None:
        if not 0 <= state.done < len(spec.moves):
            return None
        move, values = spec.moves[state.done], list[int]()
        for term in move.terms:
            value = state.value if term == LAST else state.known.get(term)
            value = int(term) if term.isdigit() else value
            if value is None or not 0 <= value <= LIMIT:
                return None
            values.append(value)
        a, b = values
        if move.op == "/" and (b == 0 or a % b):
            return None
        text, result = work_out(a, move.op, b, worked, slip)
        if result < 0:
            return None
        return f"{move.word.replace(NUMBER, str(b))}. {text}." if move.word else f"{text}."

    def render_answer(self, spec: Spec, state: State) -> str | None:
        return (
            None if state.value is None else f"That is all. The answer is \\boxed{{{state.value}}}."
        )

    def read_step(self, spec: Spec, state: State, text: str) -> State:
        found = find_equations(text)
        if not found:
            return state
        value = int(found[-1].rpartition("=")[2][:6])
        done = self._locate(spec, state, text) + 1
        return replace(
            state,
            done=done,
            value=value,
            known={**state.known, f"#{done}": value},
            equations=(*state.equations, found[-1]),
        )

    def _locate(self, spec: Spec, state: State, text: str) -> int:
        """The index of the move that a step carries out: the next one with its words."""
        order: list[int] = [
            *range(state.done, len(spec.moves)),
            *range(min(state.done, len(spec.moves))),
        ]
        for index in order:
            move = spec.moves[index]
            head = move.word.replace(NUMBER, move.terms[1])
            if head and text.startswith(f"{head}."):
                return index
        return state.done

    def render_mistake(self, rng: random.Random, spec: Spec, state: State) -> str | None:
        return None


def _vary_letters(rng: random.Random, spec: Spec) -> Spec:
    """Write a few problems as hurried people do: in small letters, or without the last mark."""
    chance = rng.random()
    if chance < 0.06:
        moves = tuple(replace(move, word=move.word.lower()) for move in spec.moves)
        spec = replace(spec, text=spec.text.lower(), moves=moves)
    if rng.random() < 0.05:
        spec = replace(spec, text=spec.text.rstrip("?."))
    if rng.random() < 0.03:
        politeness = rng.choice(("Please help: ", "Hello! ", "Solve this: ", "Problem: ", "Hi, "))
        spec = replace(spec, text=politeness + spec.text)
    return spec


def draw_value(rng: random.Random) -> int:
    """Draw how many things somebody has."""
    chance = rng.random()
    if chance < 0.22:
        return rng.randint(2, 20)
    if chance < 0.62:
        return rng.randint(10, 99)
    if chance < 0.72:
        return rng.randint(2, 99) * 10
    return rng.randint(100, 900)


def draw_loss(rng: random.Random, value: int) -> int:
    """Draw how many of `value` things go."""
    if value < 2:
        return value
    chance = rng.random()
    if chance < 0.03:
        return value
    if chance < 0.35:
        return rng.randint(1, min(value, 20))
    if chance < 0.5 and value > 20:
        return rng.randint(1, value // 10) * 10
    return rng.randint(1, value)


def draw_gain(rng: random.Random, value: int) -> int:
    """Draw how many things come to `value` others."""
    room = max(2, LIMIT - value)
    chance = rng.random()
    if chance < 0.35:
        return rng.randint(1, min(room, 20))
    if chance < 0.65:
        return rng.randint(1, min(room, 99))
    if chance < 0.8:
        return min(room, rng.randint(1, 40) * 10)
    return rng.randint(1, min(room, 600))
