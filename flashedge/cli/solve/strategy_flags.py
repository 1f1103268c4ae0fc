"""Flags of `solve` that say how a strategy searches and when it may stop, as request fields."""

from __future__ import annotations

import json
from typing import Any

from flashedge.errors import RequestError


def exit_body(
    wanted: bool | None, policy: str | None, thresholds: list[str] | None, detect: int | None
) -> bool | dict[str, Any] | None:
    """The `early_exit` of a request; what is said about it asks for it. Raises RequestError."""
    said: dict[str, Any] = {"policy": policy, "detect": detect}
    said["thresholds"] = named_values("--threshold", thresholds) or None
    said = {name: value for name, value in said.items() if value is not None}
    if said and wanted is False:
        raise RequestError(f"--no-early-exit contradicts {', '.join(said)}", param="early_exit")
    return said or wanted


def named_values(flag: str, given: list[str] | None) -> dict[str, Any]:
    """{"c": 0.5} of ["c=0.5"]; a value is JSON, or else a text. Raises RequestError."""
    found: dict[str, Any] = {}
    for item in given or []:
        name, equals, value = item.partition("=")
        if not name or not equals:
            raise RequestError(f"{flag} {item!r} is not name=value", param="options")
        try:
            found[name] = json.loads(value, parse_constant=str)
        except ValueError:
            found[name] = value
    return found
