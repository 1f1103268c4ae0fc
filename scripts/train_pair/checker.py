"""The exact checker: which steps of a chain are right given what was stated before, and where each
goes wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scripts.train_pair.families.base import Spec, State
from scripts.train_pair.problems import (
    Problem,
    first_state,
    read_step,
    render_step,
)


@dataclass(frozen=True, slots=True)
class StepCheck:
    """`right`: the step follows from what was stated before. `so_far`: no step up to here was
    wrong.

    `deviation` is the first character that no right step shares (None where the step is right; the
    length of the text where it merely stops too early).
    """

    right: bool
    so_far: bool
    deviation: int | None


def split_steps(text: str) -> list[str]:
    """The steps of a solution text."""
    return [step for step in text.split("\n\n") if step]


def shared_length(left: str, right: str) -> int:
    """How many first characters two texts share."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))


def check_step(spec: Spec, state: State, text: str) -> int | None:
    """The first deviating character of `text`, or None where it is a right next step."""
    deviation = 0
    options = [render_step(spec, state, worked) for worked in (False, True)]
    for allowed in options:
        if allowed is None:
            continue
        if text == allowed:
            return None
        deviation = max(deviation, shared_length(text, allowed))
    return deviation


def check_steps(spec: Spec, steps: Sequence[str]) -> list[StepCheck]:
    """Check each step; nothing may follow a step that answers."""
    state, checks, so_far, answered = first_state(spec), [], True, False
    for text in steps:
        deviation = 0 if answered else check_step(spec, state, text)
        so_far = so_far and deviation is None
        checks.append(StepCheck(deviation is None, so_far, deviation))
        answered = answered or "\\boxed" in text
        state = read_step(spec, state, text)
    return checks


def read_answer(text: str) -> str | None:
    r"""What stands in the last `\boxed{}`, or None."""
    _, found, tail = text.rpartition("\\boxed{")
    return tail.split("}", 1)[0].strip() if found and "}" in tail else None


def is_correct(problem: Problem, text: str) -> bool:
    """Whether the final answer is right."""
    return read_answer(text) == problem.answer
