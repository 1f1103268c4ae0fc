"""Wrong values of options, said as the daemon says those of a request's fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flashedge.errors import RequestError

_RULES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "int_parsing": lambda _: "an integer",
    "int_from_float": lambda _: "an integer",
    "float_parsing": lambda _: "a number",
    "greater_than_equal": lambda limit: f"at least {limit['ge']}",
    "less_than_equal": lambda limit: f"at most {limit['le']}",
}
"""What a value must be, by pydantic's name for what is wrong with it."""


def explain_value(error: Exception) -> RequestError | None:
    """The error for a value that typer refused. None for any other usage error."""
    list_faults = getattr(error.__cause__, "errors", None)
    options = getattr(getattr(error, "param", None), "opts", None)
    if not options or not callable(list_faults):
        return None
    fault = list_faults()[0]
    rule = _RULES.get(fault["type"])
    if rule is None:
        return None
    option, given = max(options, key=len), str(fault["input"])
    shown = repr(given) if "parsing" in fault["type"] else given
    must = rule(fault.get("ctx") or {})
    return RequestError(f"{option} is {shown}; it must be {must}", param=option.lstrip("-"))
