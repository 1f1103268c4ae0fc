"""When the programs of a load arrived, started and finished, and the figures that follow.

Per-token latency is (finish - arrival) / output tokens. A program that generated nothing has none.

Ref: arXiv 2604.00499 §6.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashedge.statistics import kendall
from scripts.lab.benchmark.load.record import End, ProgramRecord

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
        """Also the finish-time fairness of each program (`fairness`)."""
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


def find_finish_time(timings: Timings, share: float) -> float:
    """Seconds from the first arrival until this share of the programs has finished.

    share: in (0, 1]; the number of programs is rounded up. NaN without programs.

    Ref: arXiv 2604.00499 §6.3, time@3K of 10K.
    """
    if not len(timings):
        return float("nan")
    count = max(1, int(np.ceil(share * len(timings) - 1e-9)))
    return float(np.sort(timings.finished_s)[count - 1] - timings.arrived_s.min())
