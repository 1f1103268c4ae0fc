"""Words that messages of the CLI, the dashboard, exports and the event log share."""

from __future__ import annotations


def format_count(count: int, noun: str) -> str:
    """Write `count` and the noun: 1 restart, 1,200 restarts."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def describe_distrust(score: float | None = None) -> str:
    """Warn of a run whose result has `trusted` false. score: of the chosen path, where known."""
    shown = "" if score is None else f" ({score:.2f})"
    return f"The verifier gives this answer a low score{shown}. It is probably wrong."
