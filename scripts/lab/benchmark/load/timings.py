"""What became of the programs of a load, and its figures: latency, order, fairness, deadlines.

Per-token latency is (finish - arrival) / output tokens. A program that generated nothing has none.
Finish-time fairness is the same figure, phi: decoding takes most of the time, so it is about
proportional to the time in the shared system over the time alone. The lower the better, and the
more even the fairer.

A deadline is the base deadline of the kind, times the difficulty of the problem, times a common
scale. A problem that is always answered right in trial runs has difficulty 1, one that never is 3,
others 2. Programs that were refused or failed have missed their deadline.

Ref: arXiv 2604.00499 §6.2; 2412.20993 §4.2, Fig. 8, App. D.3.1, F.2, F.3, G.3.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from math import ceil, inf, nan
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from flashedge.errors import ConfigError
from flashedge.files.problems import ProblemId, read_objects
from flashedge.scheduling.programs.program import Kind
from scripts.lab.statistics import kendall, mean


class End(StrEnum):
    FINISHED = "finished"
    REFUSED = "refused"
    """The queue was full."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRecord:
    """One program. Seconds are counted from its planned arrival, so a late client shows as well."""

    number: int
    part: int
    """How often the load had been interrupted and resumed before. The server was idle at the start
    of each part."""
    kind: Kind
    client: str
    problem: ProblemId
    arrived_s: float
    """Since the load's start."""
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
    """Those of a chat's answer, or of all paths of a search."""
    answer: str | None = None
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Raises KeyError, TypeError, ValueError."""
        return cls(**{**data, "kind": Kind(data["kind"]), "end": End(data["end"])})


Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Timings:
    """The finished programs of a load, in one order. All arrays are (programs,); `arrived_s` is
    since the load's start, the other times since each program's arrival."""

    arrived_s: Floats
    wait_s: Floats
    ttft_s: Floats
    """Time to first token."""
    latency_s: Floats
    output_tokens: Integers

    @classmethod
    def of_records(cls, records: Iterable[ProgramRecord]) -> Timings:
        """Take the records of finished programs with output."""
        rows = [
            (r.arrived_s, r.wait_s, r.first_token_s, r.latency_s, r.output_tokens)
            for r in records
            if r.end is End.FINISHED and r.output_tokens
        ]
        arrived, waits, ttft, latency, tokens = np.array(rows, np.float64).reshape(len(rows), 5).T
        return cls(arrived, waits, ttft, latency, tokens.astype(np.int64))

    def __len__(self) -> int:
        return len(self.arrived_s)

    @property
    def per_token_s(self) -> Floats:
        """Also the finish-time fairness of each program."""
        return self.latency_s / self.output_tokens

    @property
    def finished_s(self) -> Floats:
        """Since the load's start."""
        return self.arrived_s + self.latency_s


def summarize_values(values: Floats) -> Mapping[str, float] | None:
    """Mean, percentiles by linear interpolation, and the largest. None without values."""
    if not len(values):
        return None
    figures = (values.mean(), *np.quantile(values, (0.5, 0.9, 0.99)), values.max())
    return dict(zip(("mean", "p50", "p90", "p99", "max"), map(float, figures), strict=True))


def compute_throughput(timings: Timings) -> tuple[float, float]:
    """(programs, output tokens) a second, from the first arrival to the last finish."""
    lasted_s = 0.0
    if len(timings):
        lasted_s = float(timings.finished_s.max() - timings.arrived_s.min())
    if lasted_s <= 0:
        return 0.0, 0.0
    return len(timings) / lasted_s, float(timings.output_tokens.sum()) / lasted_s


def compute_order_quality(timings: Timings) -> float:
    """Kendall's tau between the order in which programs started and their true lengths.

    1 where every shorter program started before every longer one; about 0 for the order of
    arrival. NaN where there is nothing to compare.
    """
    started_s = timings.arrived_s + timings.wait_s
    return kendall(started_s.tolist(), timings.output_tokens.tolist())


CURVE_SHARES = tuple(i / 20 for i in range(1, 21))


def compute_jain(values: Sequence[float] | NDArray[np.float64]) -> float:
    """Jain's index, (sum x)^2 / (n sum x^2): 1 where all values are equal, 1/n where one has all.
    NaN without values.

    Ref: R. Jain, D. Chiu, W. Hawe, A quantitative measure of fairness, DEC-TR-301, 1984.
    """
    given = np.asarray(values, dtype=np.float64)
    squares = len(given) * float((given**2).sum())
    return float(given.sum()) ** 2 / squares if squares > 0 else nan


def list_fairness_curve(timings: Timings) -> list[tuple[float, float]]:
    """(share, phi) points: this share of the programs has at most this phi. The paper's Fig. 20."""
    if not len(timings):
        return []
    values = np.quantile(timings.per_token_s, CURVE_SHARES)
    return list(zip(CURVE_SHARES, values.tolist(), strict=True))


def average_by_client(records: Sequence[ProgramRecord]) -> dict[str, float]:
    """The mean phi of each client with finished programs."""
    groups: defaultdict[str, list[ProgramRecord]] = defaultdict(list)
    for record in records:
        groups[record.client].append(record)
    found = {name: Timings.of_records(group) for name, group in sorted(groups.items())}
    return {name: mean(one.per_token_s.tolist()) for name, one in found.items() if len(one)}


# ---------------------------------------------------------------- deadlines

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
