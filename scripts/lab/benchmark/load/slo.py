"""Deadlines of programs: base deadline, difficulty of the problem, and a common scale.

A problem's difficulty is known from many trial runs: one that is always answered right gets the
base deadline, one that is sometimes answered right twice that, one that never is three times that.

Ref: arXiv 2412.20993 App. F.2, F.3.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from flashedge.errors import ConfigError
from flashedge.files.problems import ProblemId
from flashedge.scheduling.programs.program import Kind

ALWAYS_RIGHT, VARIABLE, NEVER_RIGHT = 1.0, 2.0, 3.0
UNKNOWN = VARIABLE
"""The factor of a problem without trial runs."""

Factors = Mapping[ProblemId, float]
"""Difficulty factor by problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What users expect."""

    base_s: Mapping[Kind, float]
    """Base deadline of each kind. Other kinds have no deadline."""

    scale: float = 1.0
    """Multiplies all deadlines: the smaller, the stricter."""

    factors: Factors = field(default_factory=lambda: MappingProxyType({}))
    """Of problems whose difficulty is known. All others have `UNKNOWN`."""

    def find_factor(self, problem: ProblemId) -> float:
        return self.factors.get(problem, UNKNOWN)

    def compute_deadline(self, kind: Kind, problem: ProblemId) -> float | None:
        """Seconds from arrival to the deadline. None where the kind has none."""
        base_s = self.base_s.get(kind)
        return None if base_s is None else self.scale * self.find_factor(problem) * base_s


def rate_difficulty(right: Iterable[bool]) -> float:
    """The factor of a problem by its trial runs; `UNKNOWN` without one."""
    seen = set(right)
    if not seen:
        return UNKNOWN
    return VARIABLE if len(seen) == 2 else ALWAYS_RIGHT if seen == {True} else NEVER_RIGHT


def read_factors(paths: Sequence[Path]) -> Factors:
    """Read difficulties from files of JSON lines.

    A line is either a trial run, {"id": 7, "correct": true}, as `flashedge solve --input` writes
    it, or gives a factor, {"id": 7, "factor": 2}, which counts more than trial runs. Lines without
    a verdict are skipped. Raises ConfigError naming the line.
    """
    trials: defaultdict[ProblemId, list[bool]] = defaultdict(list)
    given: dict[ProblemId, float] = {}
    for path in paths:
        for number, fields in _read_lines(path):
            where = f"{path}, line {number}"
            if "settings" in fields:
                continue  # the head of a batch's results
            problem, factor, right = (fields.get(name) for name in ("id", "factor", "correct"))
            if not isinstance(problem, int | str) or isinstance(problem, bool):
                raise ConfigError(f"{where}: id is missing", hint=_HINT, param="difficulty")
            if factor is not None:
                if isinstance(factor, bool) or not isinstance(factor, int | float) or factor <= 0:
                    raise ConfigError(f"{where}: factor is {factor!r}", hint=_HINT)
                given[problem] = float(factor)
            elif isinstance(right, bool):
                trials[problem].append(right)
    return {**{problem: rate_difficulty(seen) for problem, seen in trials.items()}, **given}


_HINT = (
    'lines are like {"id": 7, "correct": true}, many for each problem, or {"id": 7, "factor": 2}'
)


def _read_lines(path: Path) -> Iterable[tuple[int, Mapping[str, Any]]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError(f"can't read {path}: {reason}", param="difficulty") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            raise ConfigError(f"{path}, line {number}: not an object", hint=_HINT)
        yield number, fields
