"""One finding of `doctor`."""

from __future__ import annotations

from dataclasses import dataclass

GOOD, WARNING, BAD = "ok", "warning", "wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What `doctor` found about one thing."""

    name: str
    verdict: str
    """GOOD, WARNING or BAD."""

    detail: str
    hint: str | None = None
    """What the user can do about it."""
