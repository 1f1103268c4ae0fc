"""The values that fields of a request may have. The API's document shows them too.

All checks raise a RequestError that names the field.
"""

from collections.abc import Mapping
from typing import Any

from flashedge.answers.equality import ANSWER_KINDS
from flashedge.errors import RequestError
from flashedge.types import JUDGED, MAX_SEED, MAX_STEP_ENTROPY, STEP_RULES

AGGREGATES = ("last", "min", "prod", "mean")
SELECTIONS = ("weighted", "majority", "best")
ROLES = ("system", "user", "assistant")
"""Roles of the messages of a problem."""

INTEGERS: Mapping[str, tuple[int, int]] = {
    "n": (1, 1024),
    "branching": (1, 1024),
    "seed": (0, MAX_SEED),
    "max_step_tokens": (1, 1 << 20),
    "max_steps": (1, 10_000),
    "min_step_tokens": (1, 1 << 20),
    "max_path_tokens": (1, 1 << 20),
    "max_tokens": (1, 1 << 20),
    "token_budget": (1, 1 << 40),
    "top_k": (0, 1 << 20),
}
"""Least and largest value. Chosen by hand: the largest are beyond what one card can use, so that a
slip is refused and not queued."""

NUMBERS: Mapping[str, tuple[float, float]] = {
    "deadline_s": (0.001, 1e6),
    "step_entropy": (0.0, MAX_STEP_ENTROPY),
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
}
"""Least and largest value. Chosen by hand for the deadline: a millisecond to eleven days."""

EXCLUSIVE_MINIMA = frozenset({"top_p"})
"""Numbers that must be greater than their least value."""

CHOICES: Mapping[str, tuple[str, ...]] = {
    "aggregate": AGGREGATES,
    "selection": SELECTIONS,
    "answers": ANSWER_KINDS,
    "step_rule": STEP_RULES,
    "judge": JUDGED,
}


def check_field(name: str, value: Any) -> None:
    """Check a field by the tables above. Accepts any value of a field that they lack."""
    if name in INTEGERS:
        check_int(name, value, *INTEGERS[name])
    elif name in NUMBERS:
        check_float(name, value, *NUMBERS[name], open_low=name in EXCLUSIVE_MINIMA)
    elif name in CHOICES:
        check_choice(name, value, CHOICES[name])


def check_int(name: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RequestError(
            f"{name} is {value!r}; it must be an integer in [{low}, {high}]", param=name
        )


def check_float(
    name: str, value: float, low: float, high: float, *, open_low: bool = False
) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= high or (open_low and value <= low):
        bracket = "(" if open_low else "["
        raise RequestError(
            f"{name} is {value!r}; it must be a number in {bracket}{low:g}, {high:g}]", param=name
        )


def check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise RequestError(f"{name} is {value!r}; it must be one of {', '.join(known)}", param=name)
