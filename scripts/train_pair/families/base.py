"""What a family of problems is: how a problem is made, and how a solution walks through it.

A solution is a walk. `move(spec, state)` writes the next step from what has been *stated* so far
and `read(spec, state, text)` reads a state back from any text, so that the checker can say of every
step whether it is right given what was stated before. Every step restates what it uses, hence a
fault is visible in its own step.
"""

from __future__ import annotations

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
LIMIT = 999  # no stated value above it is worked with


@dataclass(frozen=True, slots=True)
class Move:
    """One unit of work: `key` (day or line), its word or name, its operator and its operands.

    story: `word` is the verb, `terms` the numbers. variables: `word` is the name defined, `terms`
    names or numbers. expression: the first move alone is used, `terms` holds the signed terms.
    """

    key: str
    word: str
    op: str
    terms: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What a problem states: its text, its moves in order, its start value (story), the name asked
    for (variables), and whether the solution has to be checked before it is answered.
    """

    family: str
    text: str
    moves: tuple[Move, ...]
    start: int = 0
    target: str = ""
    check: bool = False


@dataclass(frozen=True, slots=True)
class State:
    """What a partial solution has stated: `done` moves, the last `value`, values by name, terms
    left, the equations so far, and whether they were checked.
    """

    done: int = 0
    value: int | None = None
    known: Mapping[str, int] = field(default_factory=dict)
    left: tuple[str, ...] = ()
    equations: tuple[str, ...] = ()
    checked: bool = False


class Family(Protocol):
    """One kind of problem."""

    name: str

    def make(self, rng: random.Random, steps: int, distractor: bool) -> Spec:
        """A problem of so many moves."""
        ...

    def first(self, spec: Spec) -> State:
        """The state before the first step."""
        ...

    def worked_out(self, spec: Spec, state: State) -> bool:
        """Whether nothing but check and answer remains."""
        ...

    def move(self, spec: Spec, state: State, worked: bool = False, slip: int = 0) -> str | None:
        """The step of the next move, None where there is none; `slip` is added to its result."""
        ...

    def answer(self, spec: Spec, state: State) -> str | None:
        """The answer step for what has been stated, None when nothing can be answered yet."""
        ...

    def read(self, spec: Spec, state: State, text: str) -> State:
        """What is stated once `text` follows; text that states nothing readable changes nothing."""
        ...

    def mistake(self, rng: random.Random, spec: Spec, state: State) -> str | None:
        """What somebody with this family's misconceptions writes here where they lead astray.

        Ref: Brown & Burton 1978, "Diagnostic models for procedural bugs": mistakes are systematic.
        """
        ...


def apply(a: int, op: str, b: int) -> int:
    """The exact value of `a op b`."""
    if op == "+":
        return a + b
    return a - b if op == "-" else a * b


def work_out(a: int, op: str, b: int, worked: bool, slip: int = 0) -> tuple[str, int]:
    """`a+b=c`, or the same by tens and ones when `worked`; `slip` is added to the result (a false
    step).
    """
    value = apply(a, op, b) + slip
    if not worked or (op != "*" and (b < 10 or b % 10 == 0)):
        return f"{a}{op}{b}={value}", value
    tens, ones = a // 10 * 10, a % 10
    if op == "*":
        x, y = tens * b, ones * b
        return f"{a}*{b}: {tens}*{b}={x}, {ones}*{b}={y}, {x}+{y}={value}", value
    x = apply(a, op, b // 10 * 10)
    return f"{a}{op}{b}: {a}{op}{b // 10 * 10}={x}, {x}{op}{b % 10}={value}", value


def carries(a: int, op: str, b: int) -> int:
    """What a forgotten carry or borrow adds to the result of `a op b`; 0 where there is none."""
    if op == "+" and a % 10 + b % 10 >= 10:
        return -10
    return 10 if op == "-" and a % 10 < b % 10 else 0


def signed(rng: random.Random, value: int, low: int = LOW, high: int = HIGH) -> tuple[str, int]:
    """An operator and a two-digit operand that keep `value` within [low, high]."""
    ops = [op for op in "+-" if (value + 10 <= high if op == "+" else value - 10 >= low)]
    op = rng.choice(ops)
    return op, rng.randint(10, high - value if op == "+" else value - low)


_WORKED = re.compile(r"(\d+[-+*]\d+): .*=(\d+)[.,]")
_PLAIN = re.compile(r"\d+[-+*]\d+=\d+")


def equations(text: str) -> tuple[str, ...]:
    """The equations that a step states; of one worked out by tens and ones the whole alone."""
    whole = _WORKED.search(text)
    return (f"{whole[1]}={whole[2]}",) if whole else tuple(_PLAIN.findall(text))


def render_check(state: State) -> str:
    """The step that goes through all equations again."""
    return f"Check: {', '.join(state.equations)}. That holds."
