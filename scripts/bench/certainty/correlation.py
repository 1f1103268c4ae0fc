"""How well early signals predict the samples that self-consistency needs (arXiv 2412.20993 §4.3,
Figs. 10, 13). The signals are certainindex, path length and mean log-probability.

The samples needed are the fewest from which on the vote stays right, averaged over orders of a
run's samples. Only problems whose whole vote is right have such a number. Signals are computed from
the first `--detect` samples. `own` takes the run in its own order, against orders of the *other*
samples. `mean` averages over every order, as in the paper. The weights of the combinations are
fitted on the same problems, as in the paper.

    python -m scripts.bench.certainty.correlation -n 30 --problems heldout.jsonl --plot out.svg
"""

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flashedge.certainty.measures import measure_certainty
from flashedge.cli.calibrate import find_right_answers
from flashedge.cli.connection import connect_ready
from flashedge.cli.runs import load_events
from flashedge.config import load_config
from flashedge.events import StepCompleted
from flashedge.files.problems import read_labelled
from flashedge.plots import draw_plot
from flashedge.search.voting import count_votes
from scripts.bench.certainty.whole_runs import record_whole_runs
from scripts.bench.pearson import pearson
from scripts.lab.statistics import bootstrap, kendall, mean

ORDERS = 64
SIGNALS = ("certainindex", "path length", "mean log-probability")


@dataclass(frozen=True)
class Sample:
    """One sample of a self-consistency run."""

    answer: str | None
    tokens: int
    logprob: float
    """Mean over its tokens."""


Row = tuple[float, ...]
"""The signals, then the samples needed."""


def main() -> None:
    options = parse_options()
    config = load_config({})
    problems = read_labelled(options.problems, options.limit)
    runs = record_whole_runs(
        problems, options.problems.name, "self_consistency", options.n, config, {}
    )
    right = find_right_answers(runs, {problem.text: problem.answer for problem in problems})
    rng = random.Random(0)
    rows: dict[str, list[Row]] = {"own": [], "mean": []}
    with connect_ready(config) as client:
        for run, known in zip(runs, right, strict=True):
            samples = read_samples(client, run.run)
            if count_needed(samples, known) is None:
                continue
            for name, make in (("own", build_own_row), ("mean", build_mean_row)):
                row = make(samples, known, options.detect, rng)
                if row is not None:
                    rows[name].append(row)
    found = {name: correlate(table) for name, table in rows.items()}
    if options.plot:
        points = sorted((row[-1], row[0]) for row in rows["mean"])
        draw_plot(
            options.plot,
            {"problems": points},
            title=f"certainindex after {options.detect} samples",
            x="samples needed",
            y="certainindex",
            marks=("problems",),
        )
    counts = {"problems": len(runs), "solvable": len(rows["mean"])}
    print(json.dumps({"n": options.n, "detect": options.detect, **counts, **found}))


def read_samples(client: Any, run: str) -> list[Sample]:
    """Read a stored run's samples in the order in which they started."""
    steps = {e.node: e for _, e in load_events(client, run) if isinstance(e, StepCompleted)}
    completions = sorted(client.run(run)["completions"], key=lambda c: c["node"])
    return [
        Sample(c["answer"], len(c["token_ids"]), mean(steps[c["node"]].logprobs))
        for c in completions
    ]


def count_needed(samples: Sequence[Sample], right: frozenset[str]) -> int | None:
    """Return the fewest samples from which on the vote stays right; None if it ends wrong."""
    last_wrong = 0
    for count in range(1, len(samples) + 1):
        best = count_votes((sample.answer, 1.0) for sample in samples[:count])
        if not best or best[0].answer not in right:
            last_wrong = count
    return None if last_wrong == len(samples) else last_wrong + 1


def compute_signals(samples: Sequence[Sample]) -> Row:
    """Compute the signals in the order of SIGNALS."""
    certainty = measure_certainty(sample.answer for sample in samples)
    lengths, logprobs = [s.tokens for s in samples], [s.logprob for s in samples]
    return (certainty or 0.0, mean(lengths), mean(logprobs))


def build_own_row(
    samples: Sequence[Sample], right: frozenset[str], detect: int, rng: random.Random
) -> Row | None:
    """Return the signals of the run in its own order, and the samples needed among the others."""
    others = list(samples[detect:])
    found = [count_needed(rng.sample(others, len(others)), right) for _ in range(ORDERS)]
    counts = [float(count) for count in found if count is not None]
    return (*compute_signals(samples[:detect]), mean(counts)) if counts else None


def build_mean_row(
    samples: Sequence[Sample], right: frozenset[str], detect: int, rng: random.Random
) -> Row | None:
    """Return signals and samples needed, averaged over many orders.

    If the whole vote is a tie, the order decides it; only orders that decide it right count.
    """
    rows = []
    for _ in range(ORDERS):
        order = rng.sample(list(samples), len(samples))
        count = count_needed(order, right)
        if count is not None:
            rows.append((*compute_signals(order[:detect]), float(count)))
    return tuple(mean(column) for column in zip(*rows, strict=True)) if rows else None


def correlate(rows: Sequence[Row]) -> Mapping[str, Mapping[str, object]]:
    """Correlate every signal, with the sign for which more means sooner, and combinations."""
    columns = list(zip(*rows, strict=True))
    target = [-value for value in columns[-1]]
    chosen: dict[str, Sequence[float]] = dict(zip(SIGNALS, columns, strict=False))
    chosen["path length"] = [-value for value in chosen["path length"]]
    chosen["certainindex and log-probability"] = fit_linear([columns[0], columns[2]], target)
    chosen["all three"] = fit_linear(columns[:3], target)
    return {
        name: {
            "pearson": round(pearson(values, target), 3),
            "pearson_95": bound_correlation(values, target),
            "kendall": round(kendall(values, target), 3),
        }
        for name, values in chosen.items()
    }


def fit_linear(columns: Sequence[Sequence[float]], target: Sequence[float]) -> list[float]:
    """Return the linear combination nearest to the target."""
    table = np.column_stack([*columns, np.ones(len(target))])
    weights = np.linalg.lstsq(table, np.asarray(target), rcond=None)[0]
    return [float(value) for value in table @ weights]


def bound_correlation(values: Sequence[float], target: Sequence[float]) -> list[float]:
    """Return the bootstrap 95 % interval over problems."""
    low, high = bootstrap(
        list(zip(values, target, strict=True)),
        lambda some: pearson([a for a, _ in some], [b for _, b in some]),
    )
    return [round(low, 3), round(high, 3)]


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=30)
    parser.add_argument("--detect", type=int, default=5)
    parser.add_argument("--problems", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--plot", type=Path, default=None)
    return parser.parse_args()


if __name__ == "__main__":
    main()
