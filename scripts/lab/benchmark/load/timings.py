"""What became of the programs of a load, and the figures that follow: latency, order, fairness.

Per-token latency is (finish - arrival) / output tokens. A program that generated nothing has none.
Finish-time fairness is the same figure, phi: decoding takes most of the time, so it is about
proportional to the time in the shared system over the time alone. The lower the better, and the
more even the fairer.

Ref: arXiv 2604.00499 §6.2; 2412.20993 App. D.3.1, G.3.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from flashedge.files.problems import ProblemId
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """The finished programs of a load, in one order. All arrays are (programs,), all times are
    seconds of one clock."""

    arrived_s: Floats
    started_s: Floats
    first_token_s: Floats
    finished_s: Floats
    output_tokens: Integers

    @classmethod
    def of_records(cls, records: Iterable[ProgramRecord]) -> Timings:
        """Take the records of finished programs with output."""
        rows = [
            (r.arrived_s, r.wait_s, r.first_token_s, r.latency_s, r.output_tokens)
            for r in records
            if r.end is End.FINISHED and r.output_tokens
        ]
        table = np.array(rows, dtype=np.float64).reshape(len(rows), 5)
        arrived_s = table[:, 0]
        return cls(
            arrived_s=arrived_s,
            started_s=arrived_s + table[:, 1],
            first_token_s=arrived_s + table[:, 2],
            finished_s=arrived_s + table[:, 3],
            output_tokens=table[:, 4].astype(np.int64),
        )

    def __len__(self) -> int:
        return len(self.arrived_s)

    @property
    def latency_s(self) -> Floats:
        return self.finished_s - self.arrived_s

    @property
    def per_token_s(self) -> Floats:
        """Also the finish-time fairness of each program."""
        return self.latency_s / self.output_tokens

    @property
    def ttft_s(self) -> Floats:
        """Time to first token."""
        return self.first_token_s - self.arrived_s

    @property
    def wait_s(self) -> Floats:
        return self.started_s - self.arrived_s


def summarize_values(values: Floats) -> Mapping[str, float] | None:
    """Mean, percentiles by linear interpolation, and the largest. None without values."""
    if not len(values):
        return None
    p50, p90, p99 = np.quantile(values, (0.5, 0.9, 0.99))
    return {
        "mean": float(values.mean()),
        "p50": float(p50),
        "p90": float(p90),
        "p99": float(p99),
        "max": float(values.max()),
    }


def compute_throughput(timings: Timings) -> tuple[float, float]:
    """(programs, output tokens) a second, from the first arrival to the last finish."""
    if not len(timings):
        return 0.0, 0.0
    lasted_s = float(timings.finished_s.max() - timings.arrived_s.min())
    if lasted_s <= 0:
        return 0.0, 0.0
    return len(timings) / lasted_s, float(timings.output_tokens.sum()) / lasted_s


def compute_order_quality(timings: Timings) -> float:
    """Kendall's tau between the order in which programs started and their true lengths.

    1 where every shorter program started before every longer one; about 0 for the order of
    arrival. NaN where there is nothing to compare.
    """
    return kendall(timings.started_s.tolist(), timings.output_tokens.tolist())


CURVE_SHARES = tuple(i / 20 for i in range(1, 21))


def compute_jain(values: Sequence[float] | NDArray[np.float64]) -> float:
    """Jain's index, (sum x)^2 / (n sum x^2): 1 where all values are equal, 1/n where one has all.
    NaN without values.

    Ref: R. Jain, D. Chiu, W. Hawe, A quantitative measure of fairness, DEC-TR-301, 1984.
    """
    given = np.asarray(values, dtype=np.float64)
    squares = len(given) * float((given**2).sum())
    return float(given.sum()) ** 2 / squares if squares > 0 else float("nan")


def list_fairness_curve(timings: Timings) -> list[tuple[float, float]]:
    """(share, phi) points: this share of the programs has at most this phi. The paper's Fig. 20."""
    if not len(timings):
        return []
    values = np.quantile(timings.per_token_s, CURVE_SHARES)
    return list(zip(CURVE_SHARES, values.tolist(), strict=True))


def average_by_client(records: Iterable[ProgramRecord]) -> dict[str, float]:
    """The mean phi of each client with finished programs."""
    groups: defaultdict[str, list[ProgramRecord]] = defaultdict(list)
    for record in records:
        groups[record.client].append(record)
    found = {name: Timings.of_records(group) for name, group in sorted(groups.items())}
    return {name: mean(one.per_token_s.tolist()) for name, one in found.items() if len(one)}
