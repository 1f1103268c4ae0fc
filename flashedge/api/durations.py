"""How long a pair stays loaded after a request, as the field `keep_alive` says it."""

from __future__ import annotations

import math
import re
from typing import Any

from flashedge.errors import RequestError

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def parse_keep_alive(value: Any) -> float | None:
    """Seconds of a number, of a text such as "90", "10m" or "1h30m", None of null.

    Negative: for ever. Raises RequestError.
    """
    if value is None:
        return None
    seconds = _parse(value) if isinstance(value, str) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise _refuse(value)
    if not math.isfinite(seconds):
        raise _refuse(value)
    return float(seconds)


def _parse(text: str) -> float | None:
    text = text.strip()
    sign = -1.0 if text.startswith("-") else 1.0
    text = text.removeprefix("-")
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return sign * float(text)
    if not text or _PART.sub("", text):
        return None
    return sign * sum(float(count) * _UNITS[unit] for count, unit in _PART.findall(text))


def _refuse(value: Any) -> RequestError:
    return RequestError(
        f"keep_alive is {value!r}",
        hint='give seconds, or a text such as "10m"; 0 unloads at once, -1 never',
        param="keep_alive",
    )
