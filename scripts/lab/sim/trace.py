"""Step lengths of real samples: what the simulated model's steps are as long as."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from flashedge.types import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """The samples of one problem."""

    prompt_tokens: int
    step_tokens: tuple[tuple[int, ...], ...]
    """One tuple for each sample: the tokens of its steps, in order."""
    right: float | None = None
    """The share of paths that box the problem's right answer. None: the model's."""


@dataclass(frozen=True, slots=True)
class StepTrace:
    """Step lengths of several samples of each problem."""

    rows: tuple[TraceRow, ...]

    @classmethod
    def read(cls, path: Path) -> StepTrace:
        """Lines hold prompt_tokens and step_tokens. Raises OSError, ValueError, KeyError."""
        lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        return cls(
            tuple(
                TraceRow(
                    prompt_tokens=int(line["prompt_tokens"]),
                    step_tokens=tuple(tuple(map(int, sample)) for sample in line["step_tokens"]),
                )
                for line in lines
            )
        )

    def problem(self, row: int) -> Problem:
        """A problem whose paths follow `row`, with a prompt as long as that row's."""
        filler = max(self.rows[row].prompt_tokens - 3, 0)
        return Problem.from_text(" ".join([f"#{row}", *(f"word{i}" for i in range(filler))]))
