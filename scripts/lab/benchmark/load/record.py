"""What became of one program of a load: one line of the load's journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

from flashedge.files.problems import ProblemId
from flashedge.scheduling.programs.program import Kind


class End(StrEnum):
    """How a program ended."""

    FINISHED = "finished"
    REFUSED = "refused"
    """The queue was full."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRecord:
    """One program. Seconds are counted from its planned arrival, so a late client shows as well."""

    number: int
    """Its place in the load."""

    part: int
    """How often the load had been interrupted and resumed before. The server was idle at the start
    of each part."""

    kind: Kind
    client: str
    problem: ProblemId

    arrived_s: float
    """When it arrived, in seconds since the load's start."""

    end: End

    late_s: float = 0.0
    """How long after its arrival the request was sent. More than a few milliseconds mean that the
    load generator is too slow."""

    wait_s: float | None = None
    """To its start: a search leaves the queue, a chat has its first token. None unless it
    finished, like all that follow."""

    first_token_s: float | None = None
    latency_s: float | None = None

    output_tokens: int | None = None
    """Tokens of all its outputs: a chat's answer, or all paths of a search."""

    answer: str | None = None
    error: str | None = None
    """Why it failed or was refused."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`. Raises KeyError, TypeError, ValueError."""
        return cls(**{**data, "kind": Kind(data["kind"]), "end": End(data["end"])})
