"""From records to figures: what each way of choosing reaches, and how well the verifier judges."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any

from flashedge.evaluation.records import Chain, ProblemRecord
from flashedge.search.answer_choice import count_votes
from flashedge.search.scoring import aggregate
from flashedge.statistics import auc, bootstrap, calibration, interval, list_problem_aucs, mean

AGGREGATES = ("last", "min", "prod")
LABELS = "of a step: whether its chain's final answer is right (the file labels no steps)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """value with its bootstrap 95 % interval [low, high]; None where there is nothing to measure.
    count: problems it is made of."""

    value: float | None
    low: float | None
    high: float | None
    count: int


def figure_of(values: Sequence[float]) -> Figure:
    """The mean of one value a problem."""
    return _figure(mean(values), interval(values), len(values))


def choices(records: Sequence[ProblemRecord], sizes: Sequence[int]) -> dict[str, list[float]]:
    """One value a problem for every way of choosing; sizes: n, ascending. The first n chains of
    the largest n's are what a smaller n has."""
    table: dict[str, list[float]] = {
        "greedy": [float(r.greedy.right) for r in records],
        "sample": [mean([float(c.right) for c in r.chains]) for r in records],
    }
    for n in sizes:
        firsts = [r.chains[:n] for r in records]
        table[f"pass@{n}"] = [float(any(c.right for c in chains)) for chains in firsts]
        table[f"majority@{n}"] = [_voted(chains, [1.0] * len(chains)) for chains in firsts]
        for how in AGGREGATES:
            scored = [(chains, [aggregate(c.scores, how) for c in chains]) for chains in firsts]
            table[f"best-of-{n} ({how})"] = [_best(*pair) for pair in scored]
            table[f"weighted vote@{n} ({how})"] = [_voted(*pair) for pair in scored]
        table[f"beam-{n}"] = [float(r.beams[n].right) for r in records]
    return table


def differences(table: Mapping[str, Sequence[float]], sizes: Sequence[int]) -> dict[str, Figure]:
    """Beam search against greedy and against the vote, problem by problem."""
    return {
        f"beam-{n} minus {other}": figure_of(
            [a - b for a, b in zip(table[f"beam-{n}"], table[other], strict=True)]
        )
        for n in sizes
        for other in ("greedy", f"majority@{n}")
    }


def verifier_figures(records: Sequence[ProblemRecord]) -> dict[str, Figure]:
    """AUC of chains within a problem and pooled, calibration error of steps."""
    labels = [[c.right for c in r.chains] for r in records]
    found: dict[str, Figure] = {}
    for how in AGGREGATES:
        scores = [[aggregate(c.scores, how) for c in r.chains] for r in records]
        within = list_problem_aucs(scores, labels)
        found[f"within-problem AUC ({how})"] = figure_of(within)
        problems = [list(zip(*row, strict=True)) for row in zip(scores, labels, strict=True)]
        found[f"pooled AUC ({how}), no gate"] = _over_problems(problems, _pooled_auc)
    steps = [_judged_steps([r]) for r in records]
    found["expected calibration error"] = _over_problems(
        steps, lambda some: calibration(*_columns(_joined(some)))[0]
    )
    return found


def reliability(records: Sequence[ProblemRecord]) -> list[dict[str, float]]:
    """By tenths of the score: what the verifier said, how often it was so."""
    return calibration(*_columns(_judged_steps(records)))[1]


def step_tokens(records: Sequence[ProblemRecord]) -> dict[str, Figure]:
    """Mean and longest step, and max/mean among the samples of one problem's same step."""
    problems = [[c.step_tokens for c in r.chains if c.step_tokens] for r in records]
    problems = [chains for chains in problems if chains]
    lengths = [[float(t) for chain in chains for t in chain] for chains in problems]
    longest = max((t for some in lengths for t in some), default=math.nan)
    spreads = [s for s in map(_spread, problems) if not math.isnan(s)]
    return {
        "mean": _over_problems(lengths, lambda some: mean(_joined(some))),
        "max": _figure(longest, (math.nan, math.nan), len(problems)),
        "spread (max/mean of a problem's step)": figure_of(spreads),
    }


def grouped(
    records: Sequence[ProblemRecord],
    table: Mapping[str, Sequence[float]],
    names: Sequence[str],
    key: Callable[[ProblemRecord], Any],
) -> dict[str, dict[str, Figure]]:
    """Some columns by a property of the problem, in its order; empty where no problem has it."""
    keys = [key(record) for record in records]
    found = sorted({k for k in keys if k is not None})
    return {
        str(group): {
            name: figure_of([v for v, k in zip(table[name], keys, strict=True) if k == group])
            for name in names
        }
        for group in found
    }


def report_of(records: Sequence[ProblemRecord], sizes: Sequence[int]) -> dict[str, Any]:
    """All figures as plain JSON values."""
    table = choices(records, sizes)
    largest = sizes[-1]
    told = ("greedy", "sample", f"majority@{largest}", f"beam-{largest}")
    sections: dict[str, Any] = {
        "accuracy": {name: figure_of(values) for name, values in table.items()},
        "paired": differences(table, sizes),
        "verifier": verifier_figures(records),
        "step_tokens": step_tokens(records),
        "by_family": grouped(records, table, told, lambda r: r.family),
        "by_steps": grouped(records, table, told, lambda r: r.steps),
    }
    return {
        "problems": len(records),
        **_plain(sections),
        "labels": LABELS,
        "reliability": reliability(records),
    }


# ---------------------------------------------------------------- inner

Judged = tuple[float, bool]


def _figure(value: float, bounds: tuple[float, float], count: int) -> Figure:
    kept = [None if math.isnan(x) else round(x, 4) for x in (value, *bounds)]
    return Figure(value=kept[0], low=kept[1], high=kept[2], count=count)


def _over_problems(
    problems: Sequence[Sequence[Any]], statistic: Callable[[Sequence[Sequence[Any]]], float]
) -> Figure:
    """A statistic of the pooled problems. The bootstrap resamples problems."""
    return _figure(statistic(problems), bootstrap(problems, statistic), len(problems))


def _voted(chains: Sequence[Chain], weights: Sequence[float]) -> float:
    """1 when the vote's answer is right; equal votes go to the earlier chain."""
    ballots = ((chain.answer, weight) for chain, weight in zip(chains, weights, strict=True))
    counted = count_votes(ballots)
    right = {chain.answer for chain in chains if chain.right}
    return float(bool(counted) and counted[0].answer in right)


def _best(chains: Sequence[Chain], scores: Sequence[float]) -> float:
    """1 when the chain with the highest score is right; the earlier of equals."""
    return float(chains[scores.index(max(scores))].right) if chains else 0.0


def _pooled_auc(problems: Sequence[Sequence[Judged]]) -> float:
    judged = _joined(problems)
    return auc([s for s, right in judged if right], [s for s, right in judged if not right])


def _judged_steps(records: Iterable[ProblemRecord]) -> list[Judged]:
    return [(score, c.right) for r in records for c in r.chains for score in c.scores]


def _spread(chains: Sequence[Sequence[int]]) -> float:
    """Mean over a problem's steps of max/mean among its chains; steps that one chain has tell
    nothing."""
    by_step = ([t for t in step if t is not None] for step in zip_longest(*chains))
    return mean([max(step) / mean(step) for step in by_step if len(step) > 1])


def _joined(problems: Iterable[Sequence[Any]]) -> list[Any]:
    return [item for problem in problems for item in problem]


def _columns(judged: Sequence[Judged]) -> tuple[list[float], list[bool]]:
    return [score for score, _ in judged], [right for _, right in judged]


def _plain(value: Any) -> Any:
    if isinstance(value, Figure):
        return asdict(value)
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, dict) else value
