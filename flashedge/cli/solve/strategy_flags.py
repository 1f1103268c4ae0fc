"""The strategy and the fields of a request that `solve --set` gives."""

import json
import math
from functools import partial
from typing import Any

from flashedge.errors import NotFound, RequestError
from flashedge.types import STRATEGIES

REQUEST_FIELDS = {
    "branching": "children of each kept path (4)",
    "aggregate": "how step scores become a path's: last, min, prod, mean (last)",
    "selection": "how the answer is chosen: weighted, majority, best (weighted)",
    "step_rule": "where a step ends: blank_line, markers, tokens, entropy (the pair's)",
    "step_entropy": "nats above which a step ends by the rule entropy, 0 to 3 (the pair's)",
    "min_step_tokens": "least tokens of a step by the rule entropy (the pair's)",
    "max_step_tokens": "most tokens of a step (the pair's)",
    "max_steps": "most steps of a path (40)",
    "judge": "what the verifier sees: steps, or answer, the text after the thinking (steps)",
    "top_p": "sample from the likeliest tokens of this total probability (1)",
    "top_k": "sample from the N likeliest tokens; 0 is off (0)",
    "baseline": "true: the stock loop, without optimizations, for comparison",
    "early_exit.policy": "lead, static, every_5 or every_step",
    "early_exit.thresholds.NAME": "least certainty at which to stop, by measure: entropy, reward",
    "early_exit.detect": "paths, rollouts or probes before certainty is first measured",
}
"""Fields of a request that have no flag, what they mean, and in brackets their defaults."""


def complete_strategy(incomplete: str) -> list[str]:
    return [name for name in STRATEGIES if name.startswith(incomplete)]


def parse_strategy_flags(strategy: str | None, n: int | None) -> tuple[str | None, int | None]:
    """(strategy, n) of the flags, such as ("beam", 16) of "beam-16". Raises NotFound for an unknown
    strategy, and RequestError when `n` contradicts its suffix or the suffix is out of range."""
    from flashedge.runtime.request.values import check_field
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


def build_fields(assignments: list[str] | None, early_exit: bool | None) -> dict[str, Any]:
    """The fields of a request that `--set` and the flags of early exit give. A name that is no
    field is an option of the strategy. Raises RequestError."""
    from flashedge.runtime.request.values import check_field

    fields: dict[str, Any] = {}
    known = {name.partition(".")[0] for name in REQUEST_FIELDS}
    for name, value in parse_assignments(assignments).items():
        *outer, last = name.split(".") if name.partition(".")[0] in known else ("options", name)
        if last in REQUEST_FIELDS:
            check_field(last, value)
        place = fields
        for part in outer:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise RequestError(f"--set {name} contradicts --set {part}", param=part)
        place[last] = value
    exits = fields.setdefault("early_exit", early_exit)
    if early_exit is False and exits:
        given = ", ".join(exits) if isinstance(exits, dict) else "--set early_exit"
        raise RequestError(f"--no-early-exit contradicts {given}", param="early_exit")
    return fields


def parse_assignments(given: list[str] | None) -> dict[str, Any]:
    """{"c": 0.5} of ["c=0.5"]. A value is JSON, or else text. Raises RequestError for another form
    and for a number that is too large."""
    found: dict[str, Any] = {}
    for item in given or []:
        name, equals, value = item.partition("=")
        if not name or not equals:
            raise RequestError(f"--set {item!r} is not NAME=VALUE", param="options")
        try:
            parse_float = partial(_parse_float, name)
            found[name] = json.loads(value, parse_float=parse_float, parse_constant=str)
        except ValueError:
            found[name] = value
    return found


def _parse_float(name: str, text: str) -> float | None:
    return check_finite(name, float(text))


def check_finite(name: str, value: float | None) -> float | None:
    """Return `value`. Raises RequestError if it is infinite or NaN, which JSON can't hold."""
    if value is not None and not math.isfinite(value):
        raise RequestError(f"{name} is {value}; it must be a finite number", param=name)
    return value
