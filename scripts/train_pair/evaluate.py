"""The table of a pair on problems it never saw: what one sample, a vote, the verifier and search
reach.

Everything is measured on the same problems and, where they sample chains, on the same chains.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from scripts.train_pair import metrics
from scripts.train_pair.batches import Encoder
from scripts.train_pair.beams import beam_search
from scripts.train_pair.checker import check_steps, is_correct, read_answer, split_steps
from scripts.train_pair.decode import sample_chains, score_chains
from scripts.train_pair.export import load_model
from scripts.train_pair.model import Generator, Verifier
from scripts.train_pair.problems import (
    CALIBRATION_SEEDS,
    HELDOUT_SEEDS,
    STANDARD,
    Problem,
    make_problems,
)
from scripts.train_pair.tokenizer import load_tokenizer

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


def judge_samples(
    problems: Sequence[Problem],
    chains: Sequence[Sequence[str]],
    scores: Sequence[Sequence[Sequence[float]]],
    n: int,
) -> dict[str, list[float]]:
    """One value a problem for every way of choosing among the first n chains."""
    table: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        table.setdefault(name, []).append(float(value))

    for problem, texts, rows in zip(problems, chains, scores, strict=True):
        texts, rows = texts[:n], rows[:n]
        answers = [read_answer(text) for text in texts]
        note("sample", metrics.mean([float(is_correct(problem, text)) for text in texts]))
        note(f"pass@{n}", any(is_correct(problem, text) for text in texts))
        note(f"majority@{n}", metrics.vote(answers, [1.0] * n) == problem.answer)
        for how in AGGREGATES:
            totals = [metrics.aggregate(row, how) for row in rows]
            note(f"best-of-{n} ({how})", answers[totals.index(max(totals))] == problem.answer)
            note(f"weighted vote@{n} ({how})", metrics.vote(answers, totals) == problem.answer)
    return table


def judge_verifier(
    problems: Sequence[Problem],
    chains: Sequence[Sequence[str]],
    scores: Sequence[Sequence[Sequence[float]]],
) -> dict[str, object]:
    """AUCs of chains (within a problem, and pooled for comparison) and of steps, and the
    calibration.
    """
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
    wrong = [s for s, flag in zip(said, true, strict=True) if not flag]
    report["step AUC (pooled)"] = round(
        metrics.auc([s for s, flag in zip(said, true, strict=True) if flag], wrong), 4
    )
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


def evaluate(
    pair: Path,
    count: int,
    n: int = 16,
    split: str = "heldout",
    temperature: float = 0.8,
    branching: int = 4,
    seed: int = 1,
    oracle: bool = False,
    device: str = "cpu",
    smaller: Sequence[int] = (4,),
) -> dict[str, object]:
    """Measure the pair in `pair` (folders generator and prm) on the first `count` problems of a
    split.
    """
    began = time.monotonic()
    encoder = Encoder(load_tokenizer(pair / "generator"))
    generator, verifier = (
        load_model(pair / "generator").to(device),
        load_model(pair / "prm").to(device),
    )
    if not isinstance(generator, Generator) or not isinstance(verifier, Verifier):
        raise TypeError(f"{pair} does not hold a generator and a prm")
    seeds = HELDOUT_SEEDS if split == "heldout" else CALIBRATION_SEEDS
    problems = list(make_problems(seeds, count, STANDARD))
    texts = [problem.text for problem in problems]
    greedy = [row[0] for row in sample_chains(generator, encoder, texts, 1, 0.0, seed)]
    columns = {
        "greedy": [float(is_correct(p, text)) for p, text in zip(problems, greedy, strict=True)]
    }
    chains = sample_chains(generator, encoder, texts, n, temperature, seed)
    scores = [
        score_chains(verifier, encoder, text, [split_steps(chain) for chain in row])
        for text, row in zip(texts, chains, strict=True)
    ]
    for size in (*smaller, n):
        columns |= judge_samples(problems, chains, scores, size)
    print(
        json.dumps({name: round(metrics.mean(values), 3) for name, values in columns.items()}),
        flush=True,
    )
    judges: list[tuple[str, Verifier | None, int]] = [
        (f"beam-{size}", verifier, size) for size in (*smaller, n)
    ]
    if oracle:
        judges.append((f"beam-{n} (exact checker, the ceiling)", None, n))
    for name, judge, size in judges:
        found: list[str] = []
        group = max(1, 256 // size)
        for first in range(0, count, group):
            part = problems[first : first + group]
            found += beam_search(
                generator, judge, encoder, part, size, branching, temperature, seed + first
            )
        columns[name] = [
            float(is_correct(p, text)) for p, text in zip(problems, found, strict=True)
        ]
        print(name, round(metrics.mean(columns[name]), 3), flush=True)
    beam = columns[f"beam-{n}"]
    report: dict[str, object] = {name: figure(values) for name, values in columns.items()}
    for other in ("greedy", f"majority@{n}"):
        difference = [a - b for a, b in zip(beam, columns[other], strict=True)]
        report[f"beam-{n} minus {other} (paired)"] = figure(difference)
    report |= judge_verifier(problems, chains, scores)
    steps = [
        check
        for p, row in zip(problems, chains, strict=True)
        for t in row
        for check in check_steps(p.spec, split_steps(t))
    ]
    report["steps right given what was stated"] = round(
        metrics.mean([float(c.right) for c in steps]), 4
    )
    lengths = [
        len(encoder.backend.encode(s).ids) + 1
        for row in chains
        for t in row
        for s in split_steps(t)
    ]
    report["step tokens"] = {"mean": round(metrics.mean(lengths), 1), "max": max(lengths)}
    for name in ("greedy", "sample", f"majority@{n}", f"beam-{n}"):
        report[f"{name} by family"] = grouped(problems, columns[name], lambda p: p.family)
        report[f"{name} by steps"] = grouped(
            problems, columns[name], lambda p: f"{p.num_steps:02d}"
        )
    report["settings"] = {
        "problems": count,
        "split": split,
        "n": n,
        "temperature": temperature,
        "branching": branching,
        "seed": seed,
    }
    report["seconds"] = round(time.monotonic() - began)
    return report
