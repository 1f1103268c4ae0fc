"""What the scheduler tells the model runner of a pass, beside vLLM's own output."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

_NAME = "flashedge_pass"
"""The attribute of a SchedulerOutput. vLLM pickles it along to workers in other processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPass:
    """A step that belongs to deterministic requests alone."""

    rows: int
    """Rows that the model computes, padding included."""
    guesses: dict[str, list[int]] = field(default_factory=dict)
    """Of a verify pass: for each request the tokens that its last rows are computed from. The row
    before them, which holds a token that is known, checks the first. Empty in a prefill pass."""

    @property
    def is_verify(self) -> bool:
        return bool(self.guesses)


def attach_pass(output: Any, replay_pass: ReplayPass) -> None:
    setattr(output, _NAME, replay_pass)


def find_pass(output: Any) -> ReplayPass | None:
    """None: vLLM's own step."""
    found: ReplayPass | None = getattr(output, _NAME, None)
    return found
