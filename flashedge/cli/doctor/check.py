"""One finding of `doctor`."""

from __future__ import annotations

from dataclasses import dataclass

GOOD, WARNING, BAD = "ok", "warning", "wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """verdict: one of the above; hint: what to do, if anything."""

    name: str
    verdict: str
    detail: str
    hint: str | None = None
