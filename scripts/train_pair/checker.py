"""The exact checker: is each step of a chain right, given what was stated before it?"""

from collections.abc import Sequence
from dataclasses import dataclass

from scripts.train_pair.families.base import Spec, State
from scripts.train_pair.problems import Problem, create_state, read_step, render_step


@dataclass(frozen=True, slots=True)
class StepCheck:
    """What the checker says of one step."""

    right: bool
    """The step follows from what was stated before."""

    so_far: bool
    """No step up to and including this one is wrong."""

    deviation: int | None
    """The first character that no right step shares, or the length of a step that stops too early.
    None if the step is right."""


def split_steps(text: str) -> list[str]:
    """Split a solution text into its steps."""
    return [step for step in text.split("\n\n") if step]


def count_shared(left: str, right: str) -> int:
    """Count the characters that two texts share from their start."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))


def check_step(spec: Spec, state: State, text: str) -> int | None:
    """Return the first deviating character of `text`, or None if it is a right next step."""
    deviation = 0
    options = [render_step(spec, state, worked) for worked in (False, True)]
    for allowed in options:
        if allowed is None:
            continue
        if text == allowed:
            return None
        deviation = max(deviation, count_shared(text, allowed))
    return deviation


def check_steps(spec: Spec, steps: Sequence[str]) -> list[StepCheck]:
    """Check each step. A step after the answer is wrong."""
    state, checks, so_far, answered = create_state(spec), [], True, False
    for text in steps:
        deviation = 0 if answered else check_step(spec, state, text)
        so_far = so_far and deviation is None
        checks.append(StepCheck(deviation is None, so_far, deviation))
        answered = answered or "\\boxed" in text
        state = read_step(spec, state, text)
    return checks


def read_answer(text: str) -> str | None:
    r"""Return the content of the last `\boxed{}`, or None."""
    _, found, tail = text.rpartition("\\boxed{")
    return tail.split("}", 1)[0].strip() if found and "}" in tail else None


def is_correct(problem: Problem, text: str) -> bool:
    """Whether the final answer is right."""
    return read_answer(text) == problem.answer
