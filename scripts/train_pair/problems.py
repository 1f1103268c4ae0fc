"""Seeded word problems, their exact step-by-step solutions, and the splits.

A problem depends on its seed alone. The splits are ranges of seeds that don't overlap. The families
are in `families/`.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from scripts.train_pair.families import FAMILIES, MEASURED
from scripts.train_pair.families.base import Spec, State, render_check

TRAIN_SEEDS = range(0, 1_000_000_000)
CALIBRATION_SEEDS = range(1_000_000_000, 1_001_000_000)
HELDOUT_SEEDS = range(2_000_000_000, 2_001_000_000)
EASY_SEEDS = range(3_000_000_000, 3_001_000_000)
CHECK_IT = " Check it before you answer."


@dataclass(frozen=True, slots=True, kw_only=True)
class Difficulty:
    """The settings of a problem mix."""

    min_steps: int = 6
    """Fewest steps before the check and the answer."""

    max_steps: int = 10
    """Most steps before the check and the answer."""

    distractor: float = 0.3
    """Share of problems with a statement that does not matter."""

    check: float = 0.25
    """Share of problems that ask for a check before the answer."""

    families: tuple[str, ...] = MEASURED
    """Drawn from evenly; one that stands here twice is drawn twice as often."""


STANDARD = Difficulty()
EASY = Difficulty(min_steps=2, max_steps=3, distractor=0.0)
EVERYDAY = Difficulty(
    check=0.0, families=("plain", "plain", "plain", "pairs", "pairs", "sums", "diary")
)
TRAINING = Difficulty(
    min_steps=2,
    max_steps=10,
    check=0.15,
    families=(
        *("story", "story", "variables", "lookups", "expression", "expression", "drill"),
        *("sums", "sums", "diary", "diary", *("plain",) * 6, *("pairs",) * 6),
    ),
)
FAULTY = replace(
    TRAINING,
    families=(
        *("story", "variables", "lookups", "expression") * 2,
        *("sums", "diary", *("plain",) * 3, *("pairs",) * 3),
    ),
)
"""What the trunk learns from: more of the problems in which the teacher errs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem with its text and exact answer."""

    id: str
    seed: int
    family: str
    text: str
    answer: str
    num_steps: int
    """Steps of the solution, the check and the answer included."""

    spec: Spec

    def to_json(self) -> dict[str, object]:
        """Convert to the row of a problem file."""
        return {
            "id": self.id,
            "problem": self.text,
            "answer": self.answer,
            "family": self.family,
            "steps": self.num_steps,
        }


def create_state(spec: Spec) -> State:
    """Create the state before the first step."""
    return FAMILIES[spec.family].create_state(spec)


def is_worked_out(spec: Spec, state: State) -> bool:
    """Whether only the check and the answer remain."""
    return FAMILIES[spec.family].is_worked_out(spec, state)


def is_complete(spec: Spec, state: State) -> bool:
    """Whether only the answer step remains."""
    return is_worked_out(spec, state) and (state.checked or not spec.check)


def render_move(spec: Spec, state: State, worked: bool = False, slip: int = 0) -> str | None:
    """Write the step of the next move, or return None if there is none."""
    return FAMILIES[spec.family].render_move(spec, state, worked, slip)


def render_answer(spec: Spec, state: State) -> str | None:
    """Write the answer step for the stated values, or return None if they give no answer."""
    return FAMILIES[spec.family].render_answer(spec, state)


def render_step(spec: Spec, state: State, worked: bool = False, slip: int = 0) -> str | None:
    """Write the next step after `state`, without the blank line. None if no right step exists."""
    if is_complete(spec, state):
        return render_answer(spec, state)
    if is_worked_out(spec, state):
        return render_check(state)
    return render_move(spec, state, worked, slip)


def read_step(spec: Spec, state: State, text: str) -> State:
    """Return the state after the step `text`."""
    if text.startswith("Check:"):
        return replace(state, checked=True)
    if "\\boxed" in text:
        return state
    return FAMILIES[spec.family].read_step(spec, state, text)


def solve(spec: Spec, rng: random.Random | None = None, worked_share: float = 0.3) -> list[str]:
    """Write a right solution, one text per step.

    With `rng`, a share of the steps computes by tens and ones. Raises ValueError if the problem
    has no solution.
    """
    state, steps = create_state(spec), list[str]()
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
    """Make the problem of `seed`. The same seed and mix give the same problem everywhere."""
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
    """Make the first `count` problems of a seed range."""
    return (make_problem(seed, difficulty) for seed in seeds[:count])


def write_problems(path: Path, problems: Iterator[Problem]) -> None:
    """Write a JSON-lines problem file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(problem.to_json()) + "\n" for problem in problems))
