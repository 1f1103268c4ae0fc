"""Options about the strategy and its early exit, as fields of a request."""

from __future__ import annotations

import json
import math
from typing import Any

from flashedge.errors import NotFound, RequestError

STRATEGY_NAMES = (
    "beam",
    "best_of_n",
    "self_consistency",
    "dvts",
    "dynamic_branching",
    "varying_granularity",
    "rebase",
    "mcts",
    "probed_cot",
)
"""The names of `search.catalog.STRATEGIES`, here so that `--help` loads no search."""


def complete_strategy(incomplete: str) -> list[str]:
    """For the shell: the strategies that begin with `incomplete`."""
    return [name for name in STRATEGY_NAMES if name.startswith(incomplete)]


def parse_strategy_flags(strategy: str | None, n: int | None) -> tuple[str | None, int | None]:
    """("beam", 16) of "beam-16". Raises NotFound for an unknown strategy, and RequestError when
    `n` says something else or no search has so many paths."""
    from flashedge.runtime.request.checks import check_field
    from flashedge.search.catalog import parse_strategy

    if strategy is None:
        return None, n
    try:
        name, count = parse_strategy(strategy)
    except NotFound:
        from flashedge.runtime.request.strategies import find_user_programs

        name, count = parse_strategy(strategy, find_user_programs())
    if count is not None and n is not None and count != n:
        raise RequestError(f"--strategy {strategy} and --n {n} contradict each other", param="n")
    if count is not None:
        check_field("n", count)
    return name, count if count is not None else n


def build_exit_field(
    requested: bool | None, policy: str | None, thresholds: list[str] | None, detect: int | None
) -> bool | dict[str, Any] | None:
    """The field `early_exit` of a request. An option about it turns it on. Raises RequestError."""
    fields: dict[str, Any] = {
        "policy": policy,
        "detect": detect,
        "thresholds": parse_assignments("--threshold", thresholds) or None,
    }
    fields = {name: value for name, value in fields.items() if value is not None}
    if fields and requested is False:
        raise RequestError(f"--no-early-exit contradicts {', '.join(fields)}", param="early_exit")
    return fields or requested


def parse_assignments(flag: str, given: list[str] | None) -> dict[str, Any]:
    """{"c": 0.5} of ["c=0.5"]. A value is JSON, or else text. Raises RequestError."""
    found: dict[str, Any] = {}
    for item in given or []:
        name, equals, value = item.partition("=")
        if not name or not equals:
            raise RequestError(f"{flag} {item!r} is not NAME=VALUE", param="options")
        try:
            found[name] = json.loads(value, parse_constant=str)
        except ValueError:
            found[name] = value
    return found


def check_finite(name: str, value: float | None) -> float | None:
    """`value`, refused when JSON can't hold it. Raises RequestError."""
    if value is not None and not math.isfinite(value):
        raise RequestError(f"{name} is {value}; it must be a number", param=name)
    return value
