"""Step lengths that the simulation draws from, taken from real samples.

step_lengths.jsonl holds integers alone: for 100 problems of MATH (MIT licence) the level, the
tokens of the prompt and, for 8 samples of Qwen2.5-Math each, the tokens of every step. The paths
of a level take the lengths that the samples of *one* problem have at that step (max / mean 1.5).
Independent draws (2.5) would make every level more irregular than it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from flashedge.engine.sim.trace import StepTrace, TraceRow
from flashedge.errors import NotFound

FILE = Path(__file__).parent / "step_lengths.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLengths:
    """A choice of problems whose step lengths are drawn."""

    about: str

    levels: frozenset[int]
    """Levels of difficulty in MATH, from 1 (easy) to 5."""


WORKLOADS: Mapping[str, StepLengths] = MappingProxyType(
    {
        "aime": StepLengths(
            about="AIME-like: problems of MATH level 5, 515 tokens a path",
            levels=frozenset({5}),
        ),
        "amc": StepLengths(
            about="AMC-like: problems of MATH levels 3 and 4, 359 tokens a path",
            levels=frozenset({3, 4}),
        ),
        "math": StepLengths(
            about="MATH-like: all levels, 382 tokens a path", levels=frozenset({1, 2, 3, 4, 5})
        ),
    }
)


def load_trace(workload: str) -> StepTrace:
    """Load the problems of a workload, in a fixed order. Raises NotFound."""
    if workload not in WORKLOADS:
        raise NotFound(
            f"there is no workload {workload!r}",
            hint=f"known: {', '.join(WORKLOADS)}",
            param="workload",
        )
    levels = WORKLOADS[workload].levels
    lines = map(json.loads, FILE.read_text(encoding="utf-8").splitlines())
    return StepTrace(
        tuple(
            TraceRow(
                prompt_tokens=line["prompt_tokens"],
                step_tokens=tuple(map(tuple, line["step_tokens"])),
            )
            for line in lines
            if line["level"] in levels
        )
    )


def pick_rows(trace: StepTrace, count: int) -> tuple[int, ...]:
    """Pick rows that are spread evenly over the trace sorted by length, so that few problems have
    the mix of all. Returns (min(count, rows),) indices."""
    by_length = sorted(
        range(len(trace.rows)), key=lambda i: sum(map(sum, trace.rows[i].step_tokens))
    )
    count = min(count, len(by_length))
    return tuple(by_length[(2 * i + 1) * len(by_length) // (2 * count)] for i in range(count))
