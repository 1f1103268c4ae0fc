"""Step lengths and texts that the simulation draws from.

step_lengths.jsonl holds integers alone: for 100 problems of MATH (MIT licence) the level, the
tokens of the prompt and, for 8 samples of Qwen2.5-Math each, the tokens of every step. The paths
of a level take the lengths that the samples of *one* problem have at that step. Draws from all
problems would make every level more irregular than it is.

Eight samples cap the longest of many paths at the longest of eight. `smooth` replaces the samples
of each problem and step by a log-normal with their mean. Its scale is their own, drawn towards the
scale of all steps as by one more degree of freedom. The scale of all steps alone would overstate
the longest of eight.

step_texts.jsonl.gz holds token numbers alone: for 40 problems of GSM8K's training set (MIT licence,
every 75th of the first 3,000) the text of the problem and of 8 samples of Qwen2.5-Coder-1.5B each,
step by step. The tokens are those of its tokenizer, numbered by how often they occur. A step's
blank line is a token of its own, which the tokenizer would often join with the token before it, so
paths are 2 % longer. These texts have their own lengths: nothing of them is cut, repeated or made
smooth.
"""

import gzip
import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from math import exp, log, sqrt
from pathlib import Path
from statistics import NormalDist, fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flashedge.errors import NotFound
from scripts.lab.sim.model import StepTrace, TraceRow

FILE = Path(__file__).parent / "step_lengths.jsonl"
TEXTS = Path(__file__).parent / "step_texts.jsonl.gz"
LENGTHS = ("smooth", "observed")
MAX_TOKENS = 2048
"""The limit of a whole answer (`draw_answer_lengths`)."""
COPIES = 128
"""Quantiles of the log-normal for each observed sample."""


class StepLengths(NamedTuple):
    """A choice of problems whose step lengths are drawn."""

    about: str
    levels: Collection[int]
    """MATH's levels of difficulty, from 1 (easy) to 5. Empty: the problems of `TEXTS`."""


WORKLOADS: Mapping[str, StepLengths] = {
    "aime": StepLengths("AIME-like: problems of MATH level 5, 515 tokens a path", (5,)),
    "amc": StepLengths("AMC-like: problems of MATH levels 3 and 4, 359 tokens a path", (3, 4)),
    "math": StepLengths("MATH-like: all levels, 382 tokens a path", range(1, 6)),
    "gsm8k": StepLengths("real texts of GSM8K, 311 tokens a path", ()),
}


@cache
def load_trace(workload: str, lengths: str = "observed") -> StepTrace:
    """Load the problems of a workload, in a fixed order. Raises NotFound."""
    if workload not in WORKLOADS:
        raise NotFound(
            f"there is no workload {workload!r}",
            hint=f"known: {', '.join(WORKLOADS)}",
            param="workload",
        )
    levels = WORKLOADS[workload].levels
    if not levels:
        texts = gzip.decompress(TEXTS.read_bytes()).splitlines()
        return StepTrace(tuple(map(TraceRow.from_texts, map(json.loads, texts))))
    lines = map(json.loads, FILE.read_text(encoding="utf-8").splitlines())
    trace = StepTrace(tuple(TraceRow.from_json(line) for line in lines if line["level"] in levels))
    return smooth(trace) if lengths == "smooth" else trace


def smooth(trace: StepTrace, copies: int = COPIES) -> StepTrace:
    """Replace each sample by `copies` samples with as many steps, whose lengths are quantiles of
    the log-normal of their problem and step. Nothing is random here, so equal seeds still draw
    equal lengths."""
    groups = [group for row in trace.rows for group in group_lengths(row).values()]
    pooled = sum(map(_sum_squares, groups)) / sum(len(group) - 1 for group in groups)
    return StepTrace(tuple(_smooth_row(row, pooled, copies) for row in trace.rows))


def group_lengths(row: TraceRow) -> dict[tuple[int, bool], list[int]]:
    """A problem's lengths by (step, whether it is the sample's last), in the samples' order."""
    groups: defaultdict[tuple[int, bool], list[int]] = defaultdict(list)
    for sample in row.step_tokens:
        for step, tokens in enumerate(sample):
            groups[step, step == len(sample) - 1].append(tokens)
    return dict(groups)


def _smooth_row(row: TraceRow, pooled: float, copies: int) -> TraceRow:
    quantiles = {
        key: iter(_list_quantiles(group, pooled, copies * len(group)))
        for key, group in group_lengths(row).items()
    }
    return TraceRow(
        prompt_tokens=row.prompt_tokens,
        step_tokens=tuple(
            tuple(next(quantiles[step, step == len(sample) - 1]) for step in range(len(sample)))
            for _ in range(copies)
            for sample in row.step_tokens
        ),
    )


def _list_quantiles(group: Sequence[int], pooled: float, count: int) -> list[int]:
    """`count` even quantiles of a log-normal with the mean of `group`, at least 1 each."""
    scale = sqrt((_sum_squares(group) + pooled) / len(group))  # one more degree of freedom
    shape = [exp(scale * quantile) for quantile in _list_normal_quantiles(count)]
    factor = fmean(group) / fmean(shape)
    return [max(1, round(factor * value)) for value in shape]


@cache
def _list_normal_quantiles(count: int) -> tuple[float, ...]:
    return tuple(NormalDist().inv_cdf((i + 0.5) / count) for i in range(count))


def _sum_squares(group: Sequence[int]) -> float:
    """Sum the squared deviations of the lengths' logarithms from their mean."""
    logs = [log(tokens) for tokens in group]
    centre = fmean(logs)
    return sum((value - centre) ** 2 for value in logs)


def pick_rows(trace: StepTrace, count: int) -> tuple[int, ...]:
    """Indices spread evenly over the trace sorted by length, so that few problems have the mix of
    all; at most as many as there are rows."""
    by_length = sorted(
        range(len(trace.rows)), key=lambda i: sum(map(sum, trace.rows[i].step_tokens))
    )
    count = min(count, len(by_length))
    return tuple(by_length[(2 * i + 1) * len(by_length) // (2 * count)] for i in range(count))


def draw_answer_lengths(row: TraceRow, count: int, draw: np.random.Generator) -> NDArray[np.int64]:
    """(count,) tokens of whole answers to the row's problem, each step drawn by itself."""
    groups = {key: np.array(group) for key, group in group_lengths(row).items()}
    patterns = [len(sample) for sample in row.step_tokens]
    found = np.zeros(count, dtype=np.int64)
    for at, pattern in enumerate(draw.integers(len(patterns), size=count)):
        steps = patterns[pattern]
        for step in range(steps):
            group = groups[step, step == steps - 1]
            found[at] += group[draw.integers(len(group))]
    return np.minimum(found, MAX_TOKENS)
