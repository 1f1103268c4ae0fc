"""The measurements of each problem, kept in a file so that a second call resumes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from flashedge.files.journal import Journal


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What all measurements in one file share. A call with other settings is refused."""

    pair: str
    models: str
    """Digest of the pair's models."""
    problems: str
    """Digest of the problem file."""
    n: tuple[int, ...]
    """Numbers of paths, ascending."""
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """One sampled solution."""

    text: str
    answer: str | None
    """Equal answers to one problem are spelled alike."""
    right: bool
    scores: tuple[float, ...] = ()
    """(num_steps,) in [0, 1]."""
    step_tokens: tuple[int, ...] = ()
    """(num_steps,) tokens of each step. Empty where unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemRecord:
    index: int
    id: str
    family: str | None
    steps: int | None
    greedy: Chain
    chains: tuple[Chain, ...]
    """The samples, as many as the largest n."""
    beams: Mapping[int, Chain]
    """The solutions that beam search chose, by n."""

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ProblemRecord:
        """Raises ValueError."""
        return TypeAdapter(cls).validate_python(data)


def open_records(path: Path, settings: Settings) -> Journal[int, ProblemRecord]:
    """Raises what `Journal` does."""
    return Journal(
        path, dataclasses.asdict(settings), ProblemRecord.from_json, key=lambda r: r.index
    )
