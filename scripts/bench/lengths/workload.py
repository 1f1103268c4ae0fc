"""Workloads whose lengths are real: a synthetic one, and one of real prompts with real samples.

Synthetic: prompts that say how long their answers get.

The prompts are the bundled pair's word problems of a few steps. The lengths are those of
Qwen2.5-Math on 100 problems of MATH (`scripts/lab/benchmark/step_lengths.jsonl`, smoothed). What is
synthetic is that the two belong together: a problem with more steps draws its outputs from a
problem of MATH with longer answers. The problem of MATH is chosen at random among those about as
long, so that a prompt does not tell everything.

Real: samples of a model to each problem (`read_samples`), half of which make a run.
"""

import gzip
import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Protocol

import numpy as np

from flashedge.scheduling.lengths.outputs import FinishedOutputs, LengthRequest, OutputLengths
from flashedge.types import Message, TokenIds
from scripts.lab.benchmark.lengths import group_lengths, load_trace
from scripts.lab.distributions import LEAST_SPREAD
from scripts.train_pair.problems import TRAINING, make_problem

EncodePrompt = Callable[[Sequence[Message]], TokenIds]
RANKED = 500
"""Problems whose numbers of steps give a problem its place: the share that has fewer."""
BLUR = 0.15
"""How far the row of a problem may be from its place, as a share of all rows."""
MAX_TOKENS = 2_048


@dataclass(frozen=True, slots=True)
class _Row:
    """One problem of MATH."""

    num_steps: tuple[int, ...]
    """Of each observed sample."""

    step_tokens: dict[tuple[int, bool], list[int]]
    """Lengths by (step, whether it is the last)."""

    mean_tokens: float

    def draw(self, random: Random) -> int:
        """Draw the tokens of one output, each step by itself."""
        count = random.choice(self.num_steps)
        lengths = (self.step_tokens[step, step == count - 1] for step in range(count))
        return sum(map(random.choice, lengths))


class Workload(Protocol):
    """Requests with known outputs. The same index gives the same request everywhere."""

    def make_many(self, indices: Sequence[int], run: int = 0) -> list[FinishedOutputs]:
        """Make several requests, in this order. run: which of a prompt's runs, whose outputs
        differ."""
        ...


class LengthWorkload:
    """The synthetic workload."""

    def __init__(
        self,
        encode: EncodePrompt,
        stretch: float = 1.0,
        *,
        pair: str = "bundled",
        kind: str = "self_consistency",
        outputs: int = 8,
        max_tokens: int = MAX_TOKENS,
    ) -> None:
        """outputs: of each request. stretch: factor of all lengths, for a workload that drifts.
        max_tokens: outputs are cut there."""
        self._encode = encode
        self._pair, self._kind, self._outputs = pair, kind, outputs
        self._stretch, self._max_tokens = stretch, max_tokens
        self._rows = _load_rows()
        self._steps = sorted(make_problem(i, TRAINING).num_steps for i in range(RANKED))

    def make(self, index: int, run: int = 0) -> FinishedOutputs:
        """Make one request. run: which of the prompt's runs, whose outputs differ."""
        problem = make_problem(index, TRAINING)
        row = self._choose_row(problem.num_steps, Random(f"{index} {problem.text}"))
        random = Random(f"{index} {run}")
        drawn = [max(1, round(self._stretch * row.draw(random))) for _ in range(self._outputs)]
        turn = Message(role="user", content=problem.text)
        return FinishedOutputs(
            request=LengthRequest(
                pair=self._pair,
                kind=self._kind,
                prompt_ids=self._encode((turn,)),
                text=f"user: {turn.content}",
                outputs=self._outputs,
                max_tokens=self._max_tokens,
            ),
            lengths=OutputLengths.from_outputs(
                [min(tokens, self._max_tokens) for tokens in drawn],
                [tokens > self._max_tokens for tokens in drawn],
            ),
        )

    def make_many(self, indices: Sequence[int], run: int = 0) -> list[FinishedOutputs]:
        """Make several requests, in this order."""
        return [self.make(index, run) for index in indices]

    def _choose_row(self, steps: int, random: Random) -> _Row:
        """Choose the problem of MATH. steps: of the word problem."""
        fewer, more = bisect_left(self._steps, steps), bisect_right(self._steps, steps)
        place = (fewer + random.random() * (more - fewer)) / RANKED
        blurred = min(max(place + random.uniform(-BLUR, BLUR), 0.0), 0.9999)
        return self._rows[int(blurred * len(self._rows))]


def _load_rows() -> list[_Row]:
    """Load the problems of MATH, those with the shortest answers first."""
    observed, smooth = load_trace("math").rows, load_trace("math", "smooth").rows
    rows = [
        _Row(
            num_steps=tuple(len(sample) for sample in one.step_tokens),
            step_tokens=group_lengths(other),
            mean_tokens=fmean(sum(sample) for sample in one.step_tokens),
        )
        for one, other in zip(observed, smooth, strict=True)
    ]
    return sorted(rows, key=lambda row: row.mean_tokens)


# ---------------------------------------------------------------- real prompts


@dataclass(frozen=True, slots=True)
class Samples:
    """Real answers to one problem."""

    text: str
    prompt_ids: TokenIds
    tokens: tuple[int, ...]
    """Of each answer."""


def read_samples(path: Path, encode: EncodePrompt) -> list[Samples]:
    """Read lines of JSON, or .gz of them, with `problem` and the tokens of its answers, `lens`."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        rows = list(map(json.loads, file))
    return [
        Samples(
            row["problem"],
            encode((Message(role="user", content=row["problem"]),)),
            tuple(row["lens"]),
        )
        for row in rows
    ]


def spread_samples(samples: Sequence[Samples], factor: float, most: int) -> list[Samples]:
    """Samples with so many times the spread of their logarithms, in [1, most] tokens; for 1 the
    real ones.

    Each problem keeps its mean logarithm and its own spread, and has as many new samples, whose
    distances from the mean are drawn from those of all problems. To stretch its own would not do:
    they add up to 0, so half of them would tell that the others lie on the other side. Eight
    samples show no tail: none is farther from their mean than 2.5 times their spread.
    """
    if factor == 1:
        return list(samples)
    draw, logs = np.random.default_rng(0), [np.log(one.tokens) for one in samples]
    spreads = [max(float(one.std(ddof=1)), LEAST_SPREAD) for one in logs]
    pool = np.concatenate([(a - a.mean()) / b for a, b in zip(logs, spreads, strict=True)])
    pool /= pool.std()
    found = []
    for one, own, spread in zip(samples, logs, spreads, strict=True):
        drawn = np.exp(own.mean() + factor * spread * draw.choice(pool, len(own)))
        tokens = np.clip(np.rint(drawn), 1, most).astype(int).tolist()
        found.append(Samples(one.text, one.prompt_ids, tuple(tokens)))
    return found


class SampledWorkload:
    """Real prompts. A run has every second sample of its prompt, and run 1 has the others."""

    def __init__(self, samples: Sequence[Samples], stretch: float = 1.0) -> None:
        """stretch: see `LengthWorkload`. An answer as long as the longest of all was cut there."""
        self._samples, self._stretch = samples, stretch
        self._max_tokens = max(tokens for one in samples for tokens in one.tokens)

    def make_many(self, indices: Sequence[int], run: int = 0) -> list[FinishedOutputs]:
        return [self._make(self._samples[index], run) for index in indices]

    def _make(self, samples: Samples, run: int) -> FinishedOutputs:
        drawn = samples.tokens[run::2]
        return FinishedOutputs(
            request=LengthRequest(
                pair="sampled",
                kind="self_consistency",
                prompt_ids=samples.prompt_ids,
                text=f"user: {samples.text}",
                outputs=len(drawn),
                max_tokens=round(self._stretch * self._max_tokens),
            ),
            lengths=OutputLengths.from_outputs(
                [round(self._stretch * tokens) for tokens in drawn],
                [tokens >= self._max_tokens for tokens in drawn],
            ),
        )
