"""Events of numbered days: `Day 3: drops 41. 96-41=55.`

Misconceptions: in long problems "returns" is often read as a gain, "borrows" sometimes as a loss,
and the day after a long sum is often forgotten.
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
    draw_operand,
    find_equations,
    work_out,
)
from scripts.train_pair.families.diary import make_diary

THINGS = (
    *("shells", "coins", "stamps", "cards", "books"),
    *("apples", "pens", "stones", "beads", "nuts"),
)
GAINS = ("finds", "buys", "wins", "gets")
LOSSES = ("loses", "sells", "drops", "uses")
CONFUSED = {"returns": ("-", 0.7), "borrows": ("+", 0.55)}  # operator, how often it is misread
CONFUSING = 0.17  # share of days with such a word
FORGETS = 0.55  # how often the day after a long sum is forgotten

_NUMBER = re.compile(r"\d+")
_DAY = re.compile(r"Day (\d+):")


def join_numbers(terms: tuple[str, ...]) -> str:
    """Join numbers as text: `3`, `3 and 8`, `3, 8 and 5`."""
    return terms[0] if len(terms) == 1 else ", ".join(terms[:-1]) + " and " + terms[-1]


class Story:
    """One holding, events day by day."""

    def __init__(self, name: str = "story", is_everyday: bool = False) -> None:
        """is_everyday: few days, told in everyday words (`diary.py`)."""
        self.name = name
        self.is_everyday = is_everyday

    def make(self, rng: random.Random, steps: int, distractor: bool) -> Spec:
        if self.is_everyday:
            return make_diary(rng, self.name)
        name, thing, value = rng.choice(NAMES), rng.choice(THINGS), rng.randint(LOW, HIGH)
        start, moves, days = value, [], []
        for day in range(1, steps + 1):
            move, value = _draw_event(rng, str(day), value)
            moves.append(move)
            numbers = "" if move.op == "*" else f" {join_numbers(move.terms)}"
            days.append(f"Day {day}: {move.word}{numbers}.")
        if distractor:
            other = rng.choice([n for n in NAMES if n != name])
            remark = f"{other} has {rng.randint(LOW, HIGH)} {rng.choice(THINGS)}."
            days.insert(rng.randrange(len(days)), remark)
        question = f"How many {thing} has {name} after day {steps}?"
        text = f"{name} has {start} {thing}. {' '.join(days)} {question}"
        return Spec(
            family=self.name, text=text, moves=tuple(moves), start=start, careless=steps >= LONG
        )

    def create_state(self, spec: Spec) -> State:
        return State(value=spec.start)

    def is_worked_out(self, spec: Spec, state: State) -> bool:
        return state.done == len(spec.moves)

    def render_move(
        self, spec: Spec, state: State, worked: bool = False, slip: int = 0
    ) -> str | None:
        if not 0 <= state.done < len(spec.moves):
            return None
        if state.value is None or not 0 <= state.value <= LIMIT:
            return None
        move = spec.moves[state.done]
        head = f"Day {move.key}: {move.word}"
        if move.op == "*":
            return f"{head}. {work_out(state.value, '*', int(move.terms[0]), worked, slip)[0]}."
        value, parts, last = state.value, [], len(move.terms) - 1
        for index, term in enumerate(move.terms):
            off = slip if index == last else 0
            text, value = work_out(value, move.op, int(term), worked and last == 0, off)
            parts.append(text + ".")
            if value < 0:
                return None
        return f"{head} {join_numbers(move.terms)}. {' '.join(parts)}"

    def render_answer(self, spec: Spec, state: State) -> str | None:
        return f"Day {state.done} was the last. The answer is \\boxed{{{state.value}}}."

    def read_step(self, spec: Spec, state: State, text: str) -> State:
        day = _DAY.match(text)
        if day is None:
            return state
        numbers = _NUMBER.findall(text)
        return replace(
            state,
            done=int(day[1][:4]),
            value=int(numbers[-1][:6]),
            equations=(*state.equations, *find_equations(text)),
        )

    def render_mistake(self, rng: random.Random, spec: Spec, state: State) -> str | None:
        moves, done = list(spec.moves), state.done
        if not 0 <= done < len(moves):
            return None
        if 0 < done < len(moves) - 1 and len(moves[done - 1].terms) > 2:
            if rng.random() < FORGETS:
                return self.render_move(spec, replace(state, done=done + 1))
            return None
        move = moves[done]
        op, rate = CONFUSED.get(move.word, ("", 0.0))
        if not op or rng.random() >= rate:
            return None
        moves[done] = replace(move, op="-" if op == "+" else "+")
        return self.render_move(replace(spec, moves=tuple(moves)), state)


def _draw_event(rng: random.Random, day: str, value: int) -> tuple[Move, int]:
    """Draw a day's event and return it with the value after it."""
    kind, factor = rng.random(), rng.choice((2, 3))
    if kind < 0.10 and value * factor <= HIGH:
        word = "doubles" if factor == 2 else "triples"
        return Move(day, word, "*", (str(factor),)), value * factor
    if kind > 0.90 and 30 <= value <= 60:
        op = rng.choice("+-")
        terms = [str(rng.randint(2, 9)) for _ in range(rng.randint(3, 7))]
        while sum(map(int, terms)) > min(HIGH - value, value - LOW):
            terms.pop()
        move = Move(day, rng.choice(GAINS if op == "+" else LOSSES), op, tuple(terms))
        return move, value + sum(map(int, terms)) * (1 if op == "+" else -1)
    room = min(HIGH - value, value - LOW)
    if 0.10 <= kind < 0.10 + CONFUSING and room >= 10:
        word = rng.choice(list(CONFUSED))
        op, number = CONFUSED[word][0], rng.randint(10, room)
    else:
        op, number = draw_operand(rng, value)
        word = rng.choice(GAINS if op == "+" else LOSSES)
    return Move(day, word, op, (str(number),)), value + (number if op == "+" else -number)
