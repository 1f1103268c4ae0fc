"""Checks single values of a request. All raise RequestError that names the field."""

from __future__ import annotations

import math
from typing import Any

from flashedge.errors import RequestError
from flashedge.models.specs import find_fault
from flashedge.runtime.request.ranges import ABOVE, CHOICES, INTEGERS, NUMBERS


def check_int(name: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RequestError(
            f"{name} is {value!r}; it must be an integer in [{low}, {high}]", param=name
        )


def check_float(
    name: str, value: float, low: float, high: float, *, open_low: bool = False
) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if (
        not number
        or not math.isfinite(value)
        or not low <= value <= high
        or (open_low and value <= low)
    ):
        bracket = "(" if open_low else "["
        raise RequestError(
            f"{name} is {value!r}; it must be a number in {bracket}{low:g}, {high:g}]", param=name
        )


def check_field(name: str, value: Any) -> None:
    """Check a field by `ranges`."""
    if name in INTEGERS:
        check_int(name, value, *INTEGERS[name])
    elif name in NUMBERS:
        check_float(name, value, *NUMBERS[name], open_low=name in ABOVE)
    else:
        check_choice(name, value, CHOICES[name])


def check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise RequestError(f"{name} is {value!r}; it must be one of {', '.join(known)}", param=name)


def check_template_variables(name: str, given: object) -> None:
    if fault := find_fault(given):
        raise RequestError(f"{name} {fault}", param=name)
