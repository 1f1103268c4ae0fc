"""The command doctor: what is wrong on this machine, and how to fix it."""

from dataclasses import dataclass

GOOD, WARNING, BAD = "ok", "warning", "wrong"


@dataclass(frozen=True, slots=True)
class Check:
    """What `doctor` found about one thing."""

    name: str
    verdict: str
    """GOOD, WARNING or BAD."""
    detail: str
    hint: str | None = None
    """What the user can do about it."""
