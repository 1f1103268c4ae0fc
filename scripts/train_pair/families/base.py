"""The interface of a family of problems: how to make a problem and how to solve it step by step.

`render_move(spec, state)` writes the next step from the values *stated* so far, and
`read_step(spec, state, text)` reads the new state back from any text. So the checker can judge
every step by what was stated before it. Every step repeats the values that it uses, so a fault is
visible in its own step.
"""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

NAMES = (
    *("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus"),
    *("Ivy", "Kim", "Leo", "Mia", "Noa", "Tom", "Zoe"),
)
LOW, HIGH = 10, 99
LIMIT = 999  # no step is written for a larger stated value
LONG = 6  # steps from which on the teacher is careless


@dataclass(frozen=True, slots=True)
class Move:
    """One unit of work: a day (story), a line (variables), or the whole sum (expression)."""

    key: str
    """The number of the day or line."""

    word: str
    """story: the verb. variables: the name that the line defines."""

    op: str
    terms: tuple[str, ...]
    """story: numbers. variables: names or numbers. expression: the signed terms. plain: see
    `plain.Draft`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What a problem states."""

    family: str
    text: str
    moves: tuple[Move, ...]

    start: int = 0
    """The value before the first day (story, plain)."""

    target: str = ""
    """The name that the problem asks for (variables)."""

    check: bool = False
    """Whether the solution has to check its equations before it answers."""

    careless: bool = False
    """Whether the teacher makes mistakes here. Only long problems tire him."""


@dataclass(frozen=True, slots=True)
class State:
    """What a partial solution has stated."""

    done: int = 0
    """Moves worked out."""

    value: int | None = None
    """The last value."""

    known: Mapping[str, int] = field(default_factory=dict)
    """Values by name (variables), or by the number of their equation (plain)."""

    left: tuple[str, ...] = ()
    """Terms that remain (expression)."""

    equations: tuple[str, ...] = ()
    checked: bool = False


class Family(Protocol):
    """One kind of problem."""

    name: str

    def make(self, rng: random.Random, steps: int, distractor: bool) -> Spec:
        """Make a problem with `steps` moves."""
        ...

    def create_state(self, spec: Spec) -> State:
        """Create the state before the first step."""
        ...

    def is_worked_out(self, spec: Spec, state: State) -> bool:
        """Whether only the check and the answer remain."""
        ...

    def render_move(
        self, spec: Spec, state: State, worked: bool = False, slip: int = 0
    ) -> str | None:
        """Write the step of the next move, or return None if there is none.

        worked: compute by tens and ones. slip: a number that is added to the result.
        """
        ...

    def render_answer(self, spec: Spec, state: State) -> str | None:
        """Write the answer step for the stated values, or return None if they give no answer."""
        ...

    def read_step(self, spec: Spec, state: State, text: str) -> State:
        """Return the state after the step `text`. Text that states nothing changes nothing."""
        ...

    def render_mistake(self, rng: random.Random, spec: Spec, state: State) -> str | None:
        """Write the wrong step of this family's misconceptions, or return None if none applies.

        Ref: Brown & Burton 1978, "Diagnostic models for procedural bugs": mistakes are systematic.
        """
        ...


def apply(a: int, op: str, b: int) -> int:
    """Compute the exact value of `a op b`. A quotient has to be whole."""
    if op == "+":
        return a + b
    if op == "/":
        return a // b
    return a - b if op == "-" else a * b


def work_out(a: int, op: str, b: int, worked: bool, slip: int = 0) -> tuple[str, int]:
    """Return an equation as text (`a+b=c`) and its result.

    worked: compute by tens and ones. slip: a number that is added to make the result wrong.
    """
    value = apply(a, op, b) + slip
    split = a if op == "*" else b  # the number that is taken apart
    if not worked or op == "/" or split < 10 or split % 10 == 0:
        return f"{a}{op}{b}={value}", value
    tens, ones = a // 10 * 10, a % 10
    if op == "*":
        x, y = tens * b, ones * b
        return f"{a}*{b}: {tens}*{b}={x}, {ones}*{b}={y}, {x}+{y}={value}", value
    x = apply(a, op, b // 10 * 10)
    return f"{a}{op}{b}: {a}{op}{b // 10 * 10}={x}, {x}{op}{b % 10}={value}", value


def find_carry(a: int, op: str, b: int) -> int:
    """Return what a forgotten carry or borrow adds to the result of `a op b`, or 0."""
    if op == "+" and a % 10 + b % 10 >= 10:
        return -10
    return 10 if op == "-" and a % 10 < b % 10 else 0


def draw_operand(
    rng: random.Random, value: int, low: int = LOW, high: int = HIGH
) -> tuple[str, int]:
    """Draw an operator and a two-digit operand that keep `value` within [low, high]."""
    ops = [op for op in "+-" if (value + 10 <= high if op == "+" else value - 10 >= low)]
    op = rng.choice(ops)
    return op, rng.randint(10, high - value if op == "+" else value - low)


_WORKED = re.compile(r"(\d+[-+*]\d+): .*=(\d+)[.,]")
_PLAIN = re.compile(r"\d+[-+*/]\d+=\d+")


def find_equations(text: str) -> tuple[str, ...]:
    """Find the equations that a step states.

    For a computation by tens and ones, only the whole equation counts.
    """
    whole = _WORKED.search(text)
    return (f"{whole[1]}={whole[2]}",) if whole else tuple(_PLAIN.findall(text))


def render_check(state: State) -> str:
    """Write the step that repeats all equations."""
    return f"Check: {', '.join(state.equations)}. That holds."
