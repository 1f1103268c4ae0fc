"""Seeded word problems, their exact step-by-step solutions, and the splits.

A problem is a function of its seed alone; the splits are ranges of seeds that don't overlap. The
families are in `families/`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from scripts.train_pair.families import FAMILIES
from scripts.train_pair.families.base import Spec, State, render_check

TRAIN_SEEDS = range(0, 1_000_000_000)
CALIBRATION_SEEDS = range(1_000_000_000, 1_001_000_000)
HELDOUT_SEEDS = range(2_000_000_000, 2_001_000_000)
EASY_SEEDS = range(3_000_000_000, 3_001_000_000)
CHECK_IT = " Check it before you answer."


@dataclass(frozen=True, slots=True, kw_only=True)
class Difficulty:
    """Knobs of a problem mix: how many steps before the answer step, how often a distractor
    appears, and how often the solution is to be checked.
    """

    min_steps: int = 6
    max_steps: int = 10
    distractor: float = 0.3
    check: float = 0.25
    families: tuple[str, ...] = ("story", "variables", "expression")


STANDARD = Difficulty()
EASY = Difficulty(min_steps=2, max_steps=3, distractor=0.0)
TRAINING = Difficulty(min_steps=2, max_steps=10)
DRILLED = replace(TRAINING, families=("story", "variables", "expression", "drill"))
REFERRING = replace(TRAINING, families=("variables", "variables", "story", "expression"))
LOOKED_UP = replace(TRAINING, families=("lookups", "variables", "story", "expression"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem with its text and exact answer; `num_steps` counts check and answer step too."""

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


def first_state(spec: Spec) -> State:
    """The state before the first step."""
    return FAMILIES[spec.family].first(spec)


def worked_out(spec: Spec, state: State) -> bool:
    """Whether nothing but check and answer remains."""
    return FAMILIES[spec.family].worked_out(spec, state)


def is_complete(spec: Spec, state: State) -> bool:
    """Whether only the answer step remains."""
    return worked_out(spec, state) and (state.checked or not spec.check)


def render_move(spec: Spec, state: State, worked: bool = False, slip: int = 0) -> str | None:
    """The step that works out the next move, or None where there is none."""
    return FAMILIES[spec.family].move(spec, state, worked, slip)


def render_answer(spec: Spec, state: State) -> str | None:
    """The answer step for what has been stated, or None when nothing can be answered yet."""
    return FAMILIES[spec.family].answer(spec, state)


def render_step(spec: Spec, state: State, worked: bool = False, slip: int = 0) -> str | None:
    """The next step given `state` (without the blank line), or None where no right step exists."""
    if is_complete(spec, state):
        return render_answer(spec, state)
    if worked_out(spec, state):
        return render_check(state)
    return render_move(spec, state, worked, slip)


def read_step(spec: Spec, state: State, text: str) -> State:
    """What is stated once `text` follows `state`."""
    if text.startswith("Check:"):
        return replace(state, checked=True)
    if "\\boxed" in text:
        return state
    return FAMILIES[spec.family].read(spec, state, text)


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


def make_problem(seed: int, difficulty: Difficulty = STANDARD) -> Problem:
    """The problem of `seed`: the same text, solution and answer wherever it is made."""
    rng = random.Random(seed)
    family = rng.choice(difficulty.families)
    steps = rng.randint(difficulty.min_steps, difficulty.max_steps)
    spec = FAMILIES[family].make(rng, steps, rng.random() < difficulty.distractor)
    if rng.random() < difficulty.check:
        spec = replace(spec, text=spec.text + CHECK_IT, check=True)
    solution = solve(spec)
    answer = solution[-1].split("\\boxed{")[1].split("}")[0]
    return Problem(
        id=f"{family}-{seed}",
        seed=seed,
        family=family,
        text=spec.text,
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
