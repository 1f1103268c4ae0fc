"""The table of a pair, from its record: what one sample, a vote, the verifier and search reach.

Everything is measured on the same problems and, where they sample chains, on the same chains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise, product

from scripts.train_pair import metrics
from scripts.train_pair.batches import Encoder
from scripts.train_pair.checker import check_steps, is_correct, read_answer, split_steps
from scripts.train_pair.errors import count_faults
from scripts.train_pair.measure import Plan, Record
from scripts.train_pair.problems import Problem

AGGREGATES = ("last", "min", "prod")


def figure(values: Sequence[float]) -> dict[str, float]:
    """Mean and interval of one value a problem."""
    low, high = metrics.interval(values)
    return {
        "mean": round(metrics.mean(values), 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "n": len(values),
    }


def judge_samples(problem: Problem, record: Record, n: int) -> dict[str, float]:
    """What every way of choosing among the first n chains gives."""
    texts, rows = record.chains[:n], record.scores[:n]
    answers = [read_answer(text) for text in texts]
    right = [float(is_correct(problem, text)) for text in texts]
    table = {
        f"sample@{n}": metrics.mean(right),
        f"pass@{n}": max(right),
        f"majority@{n}": metrics.vote(answers, [1.0] * n) == problem.answer,
    }
    for how in AGGREGATES:
        totals = [metrics.aggregate(row, how) for row in rows]
        best = answers[totals.index(max(totals))]
        table[f"best-of-{n} ({how})"] = best == problem.answer
        table[f"weighted vote@{n} ({how})"] = metrics.vote(answers, totals) == problem.answer
    return {name: float(value) for name, value in table.items()}


def judge_verifier(
    problems: Sequence[Problem], records: Sequence[Record], n: int
) -> dict[str, object]:
    """AUCs of the first n chains (within a problem, and pooled for comparison) and of steps, and
    the calibration.
    """
    chains = [record.chains[:n] for record in records]
    scores = [record.scores[:n] for record in records]
    labels = [
        [is_correct(p, text) for text in texts] for p, texts in zip(problems, chains, strict=True)
    ]
    report: dict[str, object] = {}
    for how in AGGREGATES:
        totals = [[metrics.aggregate(row, how) for row in rows] for rows in scores]
        report[f"within-problem AUC ({how})"] = figure(metrics.within_problem_auc(totals, labels))
        flat = [
            (t, flag)
            for row, flags in zip(totals, labels, strict=True)
            for t, flag in zip(row, flags, strict=True)
        ]
        pooled = metrics.auc([t for t, flag in flat if flag], [t for t, flag in flat if not flag])
        report[f"pooled AUC ({how}), not a gate"] = round(pooled, 4)
    said: list[float] = []
    true: list[bool] = []
    for problem, texts, rows in zip(problems, chains, scores, strict=True):
        for text, row in zip(texts, rows, strict=True):
            checks = check_steps(problem.spec, split_steps(text))
            said += row
            true += [check.so_far for check in checks[: len(row)]]
    right = [s for s, flag in zip(said, true, strict=True) if flag]
    wrong = [s for s, flag in zip(said, true, strict=True) if not flag]
    report["step AUC (pooled)"] = round(metrics.auc(right, wrong), 4)
    error, table = metrics.calibration(said, true)
    report["expected calibration error (steps)"] = round(error, 4)
    report["reliability"] = table
    return report


def grouped(
    problems: Sequence[Problem], values: Sequence[float], key: Callable[[Problem], str]
) -> dict[str, float]:
    """Mean of a value by a property of the problem."""
    groups: dict[str, list[float]] = {}
    for problem, value in zip(problems, values, strict=True):
        groups.setdefault(key(problem), []).append(value)
    return {name: round(metrics.mean(groups[name]), 3) for name in sorted(groups)}


def step_lengths(encoder: Encoder, records: Sequence[Record], n: int) -> dict[str, float]:
    """Tokens of the steps of the first n chains, their separator counted.

    `spread`: longest over mean among 8 samples of the same problem and step, averaged (1.5 in the
    trace of Qwen2.5-Math samples).
    """
    everything: list[int] = []
    spreads: list[float] = []
    for record in records:
        rows = [
            [len(encoder.backend.encode(s).ids) + 1 for s in split_steps(text)]
            for text in record.chains[:n]
        ]
        everything += [length for row in rows for length in row]
        for place in range(max(map(len, rows))):
            here = [row[place] for row in rows[:8] if len(row) > place]
            if len(here) > 1:
                spreads.append(max(here) / metrics.mean(here))
    return {
        "mean": round(metrics.mean(everything), 1),
        "max": max(everything),
        "spread of the same step": round(metrics.mean(spreads), 2),
    }


def evaluate(
    problems: Sequence[Problem], records: Sequence[Record], encoder: Encoder, plan: Plan
) -> dict[str, object]:
    """The report on measured problems; gates are judged at n = 16, or the largest n below."""
    n = max(size for size in plan.sizes if size <= 16)
    columns: dict[str, list[float]] = {"greedy": []}
    for problem, record in zip(problems, records, strict=True):
        columns["greedy"].append(float(is_correct(problem, record.greedy)))
        for size in plan.sizes:
            for name, value in judge_samples(problem, record, size).items():
                columns.setdefault(name, []).append(value)
        for name, text in record.beams.items():
            judge, _, size_text = name.partition("-")
            label = "beam" if judge == "verifier" else "beam by the exact checker"
            columns.setdefault(f"{label}-{size_text}", []).append(float(is_correct(problem, text)))
    report: dict[str, object] = {name: figure(values) for name, values in columns.items()}
    pairs = [*product([f"beam-{n}"], ("greedy", f"majority@{n}"))]
    pairs += [(f"best-of-{n} ({how})", f"majority@{n}") for how in AGGREGATES]
    pairs += [(f"beam-{b}", f"beam-{a}") for a, b in pairwise(plan.sizes)]
    for one, other in pairs:
        difference = [a - b for a, b in zip(columns[one], columns[other], strict=True)]
        report[f"{one} minus {other} (paired)"] = figure(difference)
    report |= judge_verifier(problems, records, n)
    written = [(p, text) for p, r in zip(problems, records, strict=True) for text in r.chains[:n]]
    checks = [c for p, text in written for c in check_steps(p.spec, split_steps(text))]
    right = metrics.mean([float(check.right) for check in checks])
    report["steps right given what was stated"] = round(right, 4)
    report["step tokens"] = step_lengths(encoder, records, n)
    report["commonest errors"] = count_faults(written)
    for name in ("greedy", f"sample@{n}", f"majority@{n}", f"beam-{n}"):
        report[f"{name} by family"] = grouped(problems, columns[name], lambda p: p.family)
        report[f"{name} by steps"] = grouped(
            problems, columns[name], lambda p: f"{p.num_steps:02d}"
        )
    return report
