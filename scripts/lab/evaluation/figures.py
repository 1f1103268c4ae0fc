"""From records to figures: what each way of choosing reaches, and how well the verifier judges."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

from flashedge.search.aggregates import aggregate
from flashedge.search.voting import count_votes
from scripts.lab.evaluation.measure import Chain, ProblemRecord
from scripts.lab.statistics import auc, bootstrap, calibration, interval, mean

AGGREGATES = ("last", "min", "prod")
LABELS = "of a step: whether its chain's final answer is right (the file labels no steps)"


Figure = dict[str, float | None]
"""A measured `value`, its bootstrap 95 % interval from `low` to `high` and the `count` of problems.
None where there is nothing to measure."""


def estimate_mean(values: Sequence[float]) -> Figure:
    """values: one for each problem."""
    return _build_figure(mean(values), interval(values), len(values))


def grade_choices(records: Sequence[ProblemRecord], sizes: Sequence[int]) -> dict[str, list[float]]:
    """One value for each problem by every way of choosing an answer, 1 if it is right.

    sizes: the values of n, ascending. A smaller n has the first n chains of the largest. There is
    no beam search where none was measured.
    """
    table: dict[str, list[float]] = {
        "greedy": [float(r.greedy.right) for r in records],
        "sample": [mean([float(c.right) for c in r.chains]) for r in records],
    }
    for n in sizes:
        firsts = [r.chains[:n] for r in records]
        table[f"pass@{n}"] = [float(any(c.right for c in chains)) for chains in firsts]
        table[f"majority@{n}"] = [_grade_vote(chains, [1.0] * len(chains)) for chains in firsts]
        for how in AGGREGATES:
            scored = [(chains, [aggregate(c.scores, how) for c in chains]) for chains in firsts]
            table[f"best-of-{n} ({how})"] = [_grade_best(*pair) for pair in scored]
            table[f"weighted vote@{n} ({how})"] = [_grade_vote(*pair) for pair in scored]
        if all(r.beams for r in records):
            table[f"beam-{n}"] = [float(r.beams[n].right) for r in records]
    return table


def compare_beams(table: Mapping[str, Sequence[float]], sizes: Sequence[int]) -> dict[str, Figure]:
    """Beam search less greedy decoding and less the vote, problem by problem."""
    return {
        f"beam-{n} minus {other}": estimate_mean(
            [a - b for a, b in zip(table[f"beam-{n}"], table[other], strict=True)]
        )
        for n in sizes
        for other in ("greedy", f"majority@{n}")
        if f"beam-{n}" in table
    }


def measure_verifier(records: Sequence[ProblemRecord]) -> dict[str, Figure]:
    """AUC of chains within a problem and pooled, calibration error of steps."""
    found: dict[str, Figure] = {}
    for how in AGGREGATES:
        problems = [[(aggregate(c.scores, how), c.right) for c in r.chains] for r in records]
        within = (_compute_auc([judged]) for judged in problems)  # NaN without a right or wrong one
        found[f"within-problem AUC ({how})"] = estimate_mean(
            [value for value in within if not math.isnan(value)]
        )
        found[f"pooled AUC ({how}), no gate"] = _estimate_statistic(problems, _compute_auc)
    steps = [_list_judged_steps([r]) for r in records]
    found["expected calibration error"] = _estimate_statistic(
        steps, lambda some: _calibrate(list(chain.from_iterable(some)))[0]
    )
    return found


def measure_step_tokens(records: Sequence[ProblemRecord]) -> dict[str, Figure]:
    """The mean and the longest step, and max/mean among samples of a problem's same step."""
    problems = [[c.step_tokens for c in r.chains if c.step_tokens] for r in records]
    problems = [chains for chains in problems if chains]
    lengths = [[float(t) for steps in chains for t in steps] for chains in problems]
    longest = max((t for some in lengths for t in some), default=math.nan)
    spreads = [s for s in map(_compute_spread, problems) if not math.isnan(s)]
    return {
        "mean": _estimate_statistic(lengths, lambda some: mean(list(chain.from_iterable(some)))),
        "max": _build_figure(longest, (math.nan, math.nan), len(problems)),
        "spread (max/mean of a problem's step)": estimate_mean(spreads),
    }


def group_figures(
    records: Sequence[ProblemRecord],
    table: Mapping[str, Sequence[float]],
    names: Sequence[str],
    key: Callable[[ProblemRecord], Any],
) -> dict[str, dict[str, Figure]]:
    """The columns `names` for each value of `key` but None, in the order of the values."""
    keys = [key(record) for record in records]
    found = sorted({k for k in keys if k is not None})
    return {
        str(group): {
            name: estimate_mean([v for v, k in zip(table[name], keys, strict=True) if k == group])
            for name in names
        }
        for group in found
    }


def build_report(records: Sequence[ProblemRecord], sizes: Sequence[int]) -> dict[str, Any]:
    """All figures as plain JSON values."""
    table = grade_choices(records, sizes)
    largest = sizes[-1]
    usual = ("greedy", "sample", f"majority@{largest}", f"beam-{largest}")
    told = [name for name in usual if name in table]
    return {
        "problems": len(records),
        "accuracy": {name: estimate_mean(values) for name, values in table.items()},
        "paired": compare_beams(table, sizes),
        "verifier": measure_verifier(records),
        "step_tokens": measure_step_tokens(records),
        "by_family": group_figures(records, table, told, lambda r: r.family),
        "by_steps": group_figures(records, table, told, lambda r: r.steps),
        "labels": LABELS,
        "reliability": _calibrate(_list_judged_steps(records))[1],
    }


Judged = tuple[float, bool]


def _build_figure(value: float, bounds: tuple[float, float], count: int) -> Figure:
    kept = [None if math.isnan(x) else round(x, 4) for x in (value, *bounds)]
    return dict(zip(("value", "low", "high", "count"), (*kept, count), strict=True))


def _estimate_statistic(
    problems: Sequence[Sequence[Any]], statistic: Callable[[Sequence[Sequence[Any]]], float]
) -> Figure:
    """Estimate a statistic of the pooled problems. The bootstrap resamples problems."""
    return _build_figure(statistic(problems), bootstrap(problems, statistic), len(problems))


def _grade_vote(chains: Sequence[Chain], weights: Sequence[float]) -> float:
    """1 if the vote's answer is right. Equal votes go to the earlier chain."""
    counted = count_votes((c.answer, weight) for c, weight in zip(chains, weights, strict=True))
    right = {c.answer for c in chains if c.right}
    return float(bool(counted) and counted[0].answer in right)


def _grade_best(chains: Sequence[Chain], scores: Sequence[float]) -> float:
    """1 if the chain with the highest score is right, of those with an answer, as the daemon
    chooses. Of equals the earlier counts."""
    pairs = zip(scores, chains, strict=True)
    answered = [(score, c.right) for score, c in pairs if c.answer is not None]
    return float(max(answered, key=lambda each: each[0])[1]) if answered else 0.0


def _compute_auc(problems: Sequence[Sequence[Judged]]) -> float:
    judged = list(chain.from_iterable(problems))
    return auc([s for s, right in judged if right], [s for s, right in judged if not right])


def _list_judged_steps(records: Iterable[ProblemRecord]) -> list[Judged]:
    return [(score, c.right) for r in records for c in r.chains for score in c.scores]


def _compute_spread(chains: Sequence[Sequence[int]]) -> float:
    """Average max/mean over a problem's steps. A step that only one chain has says nothing."""
    by_step = ([t for t in step if t is not None] for step in zip_longest(*chains))
    return mean([max(step) / mean(step) for step in by_step if len(step) > 1])


def _calibrate(judged: Sequence[Judged]) -> tuple[float, list[dict[str, float]]]:
    return calibration([score for score, _ in judged], [right for _, right in judged])
