"""Seeded word problems of three families, with their exact step-by-step solutions.

A problem is a function of its seed alone. Its solution is a walk: `render_step(spec, state)`
writes the next step from what has been *stated* so far, and `read_step` reads a state back from
any text, so that the checker (checker.py) can say of every step whether it is right given what was
stated before.

Every step restates what it uses (the event, the operands), hence a fault is visible in its own
step.

Families: `story` (events of numbered days), `variables` (definitions that refer to earlier ones)
and `expression` (a sum reduced from the left, the rest copied each time).
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

TRAIN_SEEDS = range(0, 1_000_000_000)
CALIBRATION_SEEDS = range(1_000_000_000, 1_001_000_000)
HELDOUT_SEEDS = range(2_000_000_000, 2_001_000_000)
EASY_SEEDS = range(3_000_000_000, 3_001_000_000)

FAMILIES = ("story", "variables", "expression")
NAMES = (
    "Ada",
    "Ben",
    "Cleo",
    "Dan",
    "Eva",
    "Finn",
    "Gus",
    "Ivy",
    "Kim",
    "Leo",
    "Mia",
    "Noa",
    "Tom",
    "Zoe",
)
THINGS = (
    "shells",
    "coins",
    "stamps",
    "cards",
    "books",
    "apples",
    "pens",
    "stones",
    "beads",
    "nuts",
)
GAINS = ("finds", "buys", "wins", "gets")
LOSSES = ("loses", "sells", "drops", "gives away")
LETTERS = "abcdefghjkmnpqrstuvwxyz"
LOW, HIGH = 10, 99


@dataclass(frozen=True, slots=True, kw_only=True)
class Difficulty:
    """Knobs of a problem mix: how many steps before the answer step, and how often a distractor
    appears.
    """

    min_steps: int = 6
    max_steps: int = 10
    distractor: float = 0.3
    families: tuple[str, ...] = FAMILIES


STANDARD = Difficulty()
EASY = Difficulty(min_steps=2, max_steps=3, distractor=0.0)
TRAINING = Difficulty(min_steps=2, max_steps=10)


@dataclass(frozen=True, slots=True)
class Move:
    """One unit of work: `key` (day or variable), its words, its operator and its operands.

    story: `word` is the verb, `terms` the numbers. variables: `terms` are names or numbers.
    expression: the first move alone is used and `terms` holds the signed terms.
    """

    key: str
    word: str
    op: str
    terms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Spec:
    """What the problem states: its moves in order, its start value (story) and the name asked for
    (variables).
    """

    family: str
    moves: tuple[Move, ...]
    start: int = 0
    target: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """What a partial solution has stated: `done` moves, the last `value`, values by name, terms
    left.
    """

    done: int = 0
    value: int | None = None
    known: Mapping[str, int] = field(default_factory=dict)
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem with its text and exact answer; `num_steps` counts the answer step too."""

    id: str
    seed: int
    family: str
    text: str
    answer: str
    num_steps: int
    spec: Spec

    def to_json(self) -> dict[str, object]:
        """The row of a problem file."""
        return {
            "id": self.id,
            "problem": self.text,
            "answer": self.answer,
            "family": self.family,
            "steps": self.num_steps,
        }


# --- arithmetic ---------------------------------------------------------------------------------


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


# --- the walk -----------------------------------------------------------------------------------


def first_state(spec: Spec) -> State:
    """The state before the first step."""
    if spec.family == "story":
        return State(value=spec.start)
    return State(left=spec.moves[0].terms if spec.family == "expression" else ())


def is_complete(spec: Spec, state: State) -> bool:
    """Whether only the answer step remains."""
    if spec.family == "expression":
        return not state.left and state.value is not None
    if spec.family == "variables":
        return spec.target in state.known
    return state.done == len(spec.moves)


def list_numbers(terms: tuple[str, ...]) -> str:
    """`3`, `3 and 8`, `3, 8 and 5`."""
    return terms[0] if len(terms) == 1 else ", ".join(terms[:-1]) + " and " + terms[-1]


def render_answer(spec: Spec, state: State) -> str | None:
    """The answer step for what has been stated, or None when nothing can be answered yet."""
    if spec.family == "story":
        return f"Day {state.done} was the last. The answer is \\boxed{{{state.value}}}."
    if spec.family == "variables":
        value = state.known.get(spec.target)
        return (
            None if value is None else f"{spec.target}={value}. The answer is \\boxed{{{value}}}."
        )
    return None if state.value is None else f"Done. The answer is \\boxed{{{state.value}}}."


def render_step(spec: Spec, state: State, worked: bool = False, slip: int = 0) -> str | None:
    """The next step given `state` (without the blank line), or None where no right step exists."""
    if is_complete(spec, state):
        return render_answer(spec, state)
    return render_move(spec, state, worked, slip)


def render_move(spec: Spec, state: State, worked: bool = False, slip: int = 0) -> str | None:
    """The step that works out the next move, or None where there is none."""
    if spec.family == "expression":
        return _render_expression(state, worked, slip)
    if not 0 <= state.done < len(spec.moves):
        return None
    move = spec.moves[state.done]
    if spec.family == "variables":
        return _render_variable(move, state, worked, slip)
    if state.value is None or not 0 <= state.value <= 999:
        return None
    head = f"Day {move.key}: {move.word}"
    if move.op == "*":
        return f"{head}. {work_out(state.value, '*', int(move.terms[0]), worked, slip)[0]}."
    value, parts = state.value, []
    for index, term in enumerate(move.terms):
        last = index == len(move.terms) - 1
        text, value = work_out(
            value, move.op, int(term), worked and len(move.terms) == 1, slip if last else 0
        )
        parts.append(text + ".")
        if value < 0:
            return None
    return f"{head} {list_numbers(move.terms)}. {' '.join(parts)}"


def _render_variable(move: Move, state: State, worked: bool, slip: int) -> str | None:
    if not move.op:
        return f"{move.key}={int(move.terms[0]) + slip}."
    values, parts = [], [f"{move.key}={move.terms[0]}{move.op}{move.terms[1]}."]
    for term in move.terms:
        if term.isdigit():
            values.append(int(term))
        elif term in state.known:
            values.append(state.known[term])
            parts.append(f"{term}={values[-1]},")
        else:
            return None
    if not all(0 <= value <= 999 for value in values):
        return None
    text, value = work_out(values[0], move.op, values[1], worked, slip)
    if value < 0:
        return None
    return " ".join([*parts, f"{text},", f"{move.key}={value}."])


def _render_expression(state: State, worked: bool, slip: int) -> str | None:
    if len(state.left) < 2 or not state.left[0].isdigit():
        return None
    a, (op, b) = int(state.left[0]), (state.left[1][0], int(state.left[1][1:]))
    if a > 999:
        return None
    text, value = work_out(a, op, b, worked, slip)
    if value < 0:
        return None
    rest = "".join(state.left[2:])
    return f"{text}. Left: {value}{rest}." if rest else f"{text}. Nothing is left."


_NUMBER = re.compile(r"\d+")
_DAY = re.compile(r"Day (\d+):")
_NAME = re.compile(r"([a-z])=")
_LEFT = re.compile(r"Left: (\d+)((?:[+-]\d+)+)\.")
_RESULT = re.compile(r"=(\d+)\.")


def read_step(spec: Spec, state: State, text: str) -> State:
    """What is stated once `text` follows `state`; text that states nothing readable leaves it as
    it is.
    """
    numbers = _NUMBER.findall(text.split("\\boxed", 1)[0])
    value = int(numbers[-1][:6]) if numbers else state.value
    if spec.family == "expression":
        if left := _LEFT.search(text):
            terms = (left[1], *re.findall(r"[+-]\d+", left[2]))
            return State(done=state.done + 1, value=value, left=terms)
        if "Nothing is left" in text and (results := _RESULT.findall(text)):
            return State(done=state.done + 1, value=int(results[-1][:6]), left=())
        return state
    if spec.family == "story":
        day = _DAY.match(text)
        return state if day is None else State(done=int(day[1][:4]), value=value)
    name = _NAME.match(text)
    if name is None or value is None:
        return state
    keys = [move.key for move in spec.moves]
    done = keys.index(name[1]) + 1 if name[1] in keys else state.done
    return State(done=done, value=value, known={**state.known, name[1]: value})


def solve(spec: Spec, rng: random.Random | None = None, worked_share: float = 0.3) -> list[str]:
    """A right solution, one text per step; with `rng`, some are worked out by tens and ones."""
    state, steps = first_state(spec), []
    while True:
        worked = rng is not None and rng.random() < worked_share
        text = render_step(spec, state, worked)
        if text is None:
            raise ValueError(f"no right step after {steps}")
        steps.append(text)
        if is_complete(spec, state):
            return steps
        state = read_step(spec, state, text)


# --- making problems ----------------------------------------------------------------------------


def _signed(rng: random.Random, value: int, low: int = LOW, high: int = HIGH) -> tuple[str, int]:
    """An operator and a two-digit operand that keep `value` within [low, high]."""
    ops = [op for op in "+-" if (value + 10 <= high if op == "+" else value - 10 >= low)]
    op = rng.choice(ops)
    return op, rng.randint(10, high - value if op == "+" else value - low)


def _make_story(rng: random.Random, steps: int, distractor: bool) -> tuple[Spec, str]:
    name, thing, value = rng.choice(NAMES), rng.choice(THINGS), rng.randint(LOW, HIGH)
    start, moves, days = value, [], []
    for day in range(1, steps + 1):
        kind = rng.random()
        factor = rng.choice((2, 3))
        if kind < 0.12 and value * factor <= HIGH:
            moves.append(
                Move(str(day), "doubles" if factor == 2 else "triples", "*", (str(factor),))
            )
            value *= factor
            days.append(f"Day {day}: {moves[-1].word}.")
            continue
        if kind > 0.85 and 30 <= value <= 60:
            op, terms = (
                rng.choice("+-"),
                tuple(str(rng.randint(2, 9)) for _ in range(rng.randint(2, 6))),
            )
            while sum(map(int, terms)) > min(HIGH - value, value - LOW):
                terms = terms[:-1]
        else:
            op, number = _signed(rng, value)
            terms = (str(number),)
        moves.append(Move(str(day), rng.choice(GAINS if op == "+" else LOSSES), op, terms))
        value += sum(map(int, terms)) * (1 if op == "+" else -1)
        days.append(f"Day {day}: {moves[-1].word} {list_numbers(terms)}.")
    if distractor:
        other = rng.choice([n for n in NAMES if n != name])
        days.insert(
            rng.randrange(len(days)), f"{other} has {rng.randint(LOW, HIGH)} {rng.choice(THINGS)}."
        )
    question = f"How many {thing} has {name} after day {steps}?"
    text = f"{name} has {start} {thing}. {' '.join(days)} {question}"
    return Spec("story", tuple(moves), start=start), text


def _make_variables(rng: random.Random, steps: int, distractor: bool) -> tuple[Spec, str]:
    """Every definition up to the target is needed for it; those after it are distractors."""
    extra = rng.randint(1, 3) if distractor else 0
    letters = rng.sample(LETTERS, steps + extra)
    moves, known = [], dict[str, int]()
    loose = ""  # a constant that the next definition has to use
    for index, letter in enumerate(letters):
        if index == 0:
            known[letter] = rng.randint(LOW, HIGH)
            moves.append(Move(letter, "", "", (str(known[letter]),)))
            continue
        previous = letters[index - 1]
        if index >= 1 and index < steps - 1 and not loose and rng.random() < 0.2:
            op, number = _signed(rng, known[previous])
            known[letter], loose = number, op
            moves.append(Move(letter, "", "", (str(number),)))
            continue
        if loose:
            x, op, y = letters[index - 2], loose, previous
            known[letter], loose = apply(known[x], op, known[y]), ""
        else:
            x = previous
            pairs = [
                (op, y)
                for y in letters[: index - 1]
                for op in "+-"
                if LOW <= apply(known[x], op, known[y]) <= HIGH
            ]
            if pairs and rng.random() < 0.4:
                op, y = rng.choice(pairs)
                known[letter] = apply(known[x], op, known[y])
            else:
                op, number = _signed(rng, known[x])
                y, known[letter] = str(number), apply(known[x], op, number)
        moves.append(Move(letter, "", op, (x, y)))
    target = letters[steps - 1]
    lines = [f"{m.key} = {f' {m.op} '.join(m.terms)}." for m in moves]
    return Spec(
        "variables", tuple(moves), target=target
    ), f"Let {' '.join(lines)} What is {target}?"


def _make_expression(rng: random.Random, steps: int, distractor: bool) -> tuple[Spec, str]:
    value = rng.randint(LOW, HIGH)
    terms = [str(value)]
    for _ in range(steps):
        op, number = _signed(rng, value)
        value = apply(value, op, number)
        terms.append(f"{op}{number}")
    note = f" {rng.choice(NAMES)} says {rng.randint(LOW, HIGH)}." if distractor else ""
    return Spec("expression", (Move("", "", "", tuple(terms)),)), f"Compute {''.join(terms)}.{note}"


_MAKERS = {"story": _make_story, "variables": _make_variables, "expression": _make_expression}


def make_problem(seed: int, difficulty: Difficulty = STANDARD) -> Problem:
    """The problem of `seed`: the same text, solution and answer wherever it is made."""
    rng = random.Random(seed)
    family = rng.choice(difficulty.families)
    steps = rng.randint(difficulty.min_steps, difficulty.max_steps)
    spec, text = _MAKERS[family](rng, steps, rng.random() < difficulty.distractor)
    solution = solve(spec)
    answer = solution[-1].split("\\boxed{")[1].split("}")[0]
    return Problem(
        id=f"{family}-{seed}",
        seed=seed,
        family=family,
        text=text,
        answer=answer,
        num_steps=len(solution),
        spec=spec,
    )


def make_problems(seeds: range, count: int, difficulty: Difficulty = STANDARD) -> Iterator[Problem]:
    """The first `count` problems of a seed range."""
    return (make_problem(seed, difficulty) for seed in seeds[:count])


def write_problems(path: Path, problems: Iterator[Problem]) -> None:
    """Write a JSON-lines problem file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(problem.to_json()) + "\n" for problem in problems))
