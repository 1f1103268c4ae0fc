"""Deadlines of programs, and which share of the programs meets them.

A deadline is the base deadline of the kind, times the difficulty of the problem, times a common
scale. A problem that is always answered right in trial runs has difficulty 1, one that never is 3,
others 2. Programs that were refused or failed have missed their deadline.

Ref: arXiv 2412.20993 §4.2, Fig. 8, App. F.2, F.3.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf, nan
from pathlib import Path

from flashedge.errors import ConfigError
from flashedge.files.problems import ProblemId, read_objects
from flashedge.scheduling.programs.program import Kind
from scripts.lab.benchmark.load.timings import ProgramRecord

UNKNOWN = 2.0
"""The factor of a problem without trial runs."""
TRIED = {frozenset({True}): 1.0, frozenset({True, False}): 2.0, frozenset({False}): 3.0}
"""The factor of a problem by the verdicts of its trial runs."""

Factors = Mapping[ProblemId, float]
"""Difficulty factor by problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What users expect."""

    base_s: Mapping[Kind, float]
    """Base deadline of each kind. Other kinds have no deadline."""
    scale: float = 1.0
    """Multiplies all deadlines: the smaller, the stricter."""
    factors: Factors = field(default_factory=dict)
    """Difficulty factors. A problem that is missing has `UNKNOWN`."""


def read_factors(paths: Sequence[Path]) -> Factors:
    """Read difficulties from files of JSON lines.

    A line is either a trial run, {"id": 7, "correct": true}, as `flashedge solve --input` writes
    it, or gives a factor, {"id": 7, "factor": 2}, which counts more than trial runs. Lines without
    a verdict are skipped. Raises ConfigError naming the line, StoreError.
    """
    right_of: defaultdict[ProblemId, set[bool]] = defaultdict(set)
    given: dict[ProblemId, float] = {}
    for path in paths:
        for number, fields in read_objects(path, _HINT):
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
                right_of[problem].add(right)
    tried = {problem: TRIED[frozenset(verdicts)] for problem, verdicts in right_of.items()}
    return tried | given


_HINT = (
    'lines are like {"id": 7, "correct": true}, many for each problem, or {"id": 7, "factor": 2}'
)

TARGET = 0.9
"""The paper's P90 deadline attainment."""

SCALES = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)


def list_needed_scales(records: Iterable[ProgramRecord], slo: Slo) -> list[float]:
    """For each program with a deadline, the least SLO scale at which it would have met it.

    Infinite for a program without a result. The scale of `slo` itself does not matter.
    """
    needed = []
    for record in records:
        if (base_s := slo.base_s.get(record.kind)) is not None:
            latency_s = inf if record.latency_s is None else record.latency_s
            needed.append(latency_s / (slo.factors.get(record.problem, UNKNOWN) * base_s))
    return needed


def compute_attainment(needed: Sequence[float], scale: float) -> float | None:
    """The share that meets its deadline at this scale. None without a program with a deadline."""
    return sum(one <= scale for one in needed) / len(needed) if needed else None


def list_scale_curve(needed: Sequence[float]) -> list[tuple[float, float]]:
    """(scale, attainment) points."""
    points = ((scale, compute_attainment(needed, scale)) for scale in SCALES)
    return [(scale, share) for scale, share in points if share is not None]


def find_least_scale(needed: Sequence[float]) -> float:
    """The strictest scale with an attainment of `TARGET`. Infinite if there is none, NaN without
    deadlines."""
    if not needed:
        return nan
    return sorted(needed)[ceil(TARGET * len(needed) - 1e-9) - 1]
