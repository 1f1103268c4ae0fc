"""Which family do the lengths of one prompt's outputs follow?

    OPENBLAS_NUM_THREADS=1 python -m scripts.bench.lengths.fits [--sampled lengths.jsonl]
        [--draws 99] [--plots runs/lengths]

Fits six families to the lengths of each prompt and tests every fit (Kolmogorov and Smirnov, p >
0.05, Table 1 of arXiv 2604.00499), with the paper's p-value and with that of the bootstrap. Then it
fits them to every second output and compares the quantiles with the others: of a share p of the
held-out lengths, p should lie below the quantile of p. It draws that as a picture for each set of
prompts.

The sets: the totals of the trace in the package (100 problems, 8 samples: few, so a test fails
little whatever the family), the steps of the trace pooled for each problem, and with `--sampled`
what `sample_lengths` wrote. Samples of one problem often share steps of equal length, so the pooled
steps are not independent, and the bootstrap, which draws them independently, fails most fits. The
log score is the median over prompts, with the worst prompt beside it: a light tail can make one
held-out length all but impossible. Brackets are 95 % bootstrap intervals over prompts. The last
line is JSON.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from flashedge.cli.progress import show_bar
from flashedge.plots import draw_plot
from flashedge.scheduling.lengths.base import Floats
from flashedge.scheduling.lengths.families.catalog import FAMILIES
from flashedge.scheduling.lengths.fit import fit, log_likelihood
from flashedge.statistics import bootstrap, interval, mean
from scripts.bench.daemon import report
from scripts.bench.flashtts.study import format_table
from scripts.bench.lengths.ks import run_ks_test
from scripts.bench.lengths.prompts import (
    Prompt,
    read_sampled,
    read_trace_steps,
    read_trace_totals,
)

ADEQUATE = 0.05
LEVELS = np.arange(1, 20) / 20
REFERENCE = "log_t"
TABLE = {
    "passes": "KS passes",
    "passes_bootstrap": "KS passes, bootstrap",
    "below_half": "below the median",
    "below_nine_tenths": "below the 0.9 quantile",
    "calibration_error": "calibration error",
    "log_score": f"median log score less that of {REFERENCE}",
    "worst_log_score": "the least",
}


def measure_prompt(name: str, prompt: Prompt, draws: int, seed: int) -> dict[str, Any]:
    """Fit a family to all outputs, and to one half to predict the other.

    `passes` is None where an output was cut, since the test needs whole lengths. `log_score` is the
    mean log-likelihood of a held-out length, in nats.
    """
    found: dict[str, Any] = {"passes": None, "passes_bootstrap": None}
    if not any(prompt.is_cut):
        test = run_ks_test(name, prompt.lengths, draws=draws, seed=seed)
        found["passes"] = float(test.fixed_p_value > ADEQUATE)
        if test.bootstrap_p_value is not None:
            found["passes_bootstrap"] = float(test.bootstrap_p_value > ADEQUATE)
    seen, held_out = prompt.split()
    predicted = fit(name, seen.lengths, seen.is_censored)
    below = count_below(predicted.quantile(LEVELS), held_out)
    score = log_likelihood(predicted, held_out.lengths, held_out.is_censored)
    return {**found, "below": below, "log_score": score / len(held_out.lengths)}


def count_below(quantiles: Floats, held_out: Prompt) -> list[float]:
    """The share of the held-out lengths below each quantile, NaN where no length can tell.

    An integer stands for the lengths that are rounded to it, so one within half a token of a
    quantile counts in part. One that was cut below a quantile can't tell and is left out.
    """
    tokens = np.array(held_out.lengths, dtype=np.float64)[:, None]
    unknown = np.array(held_out.is_censored)[:, None] & (tokens < quantiles)
    below = np.where(unknown, np.nan, np.clip(quantiles - tokens + 0.5, 0, 1))
    counts = (~unknown).sum(axis=0)
    shares = np.full(quantiles.shape, np.nan)
    np.divide(np.nansum(below, axis=0), counts, out=shares, where=counts > 0)
    return [float(share) for share in shares]


def summarize(rows: Sequence[Mapping[str, Any]], reference: Sequence[float]) -> dict[str, Any]:
    """Summarize a family's figures. Most are [mean, low, high] over prompts.

    reference: (num_prompts,) log scores of the family that the others are compared with.
    """

    def average(values: Sequence[float | None]) -> list[float] | None:
        kept = [value for value in values if value is not None and not np.isnan(value)]
        return round_all(mean(kept), *interval(kept)) if kept else None

    below = np.nanmean([row["below"] for row in rows], axis=0)
    lower = [row["log_score"] - other for row, other in zip(rows, reference, strict=True)]
    return {
        "passes": average([row["passes"] for row in rows]),
        "passes_bootstrap": average([row["passes_bootstrap"] for row in rows]),
        "below_half": average([row["below"][9] for row in rows]),
        "below_nine_tenths": average([row["below"][17] for row in rows]),
        "calibration_error": round(float(np.abs(below - LEVELS).mean()), 4),
        "log_score": round_all(median(lower), *bootstrap(lower, median, draws=1000)),
        "worst_log_score": round(min(lower), 4),
        "below": round_all(*below),
    }


def round_all(*values: float) -> list[float]:
    return [round(float(value), 4) for value in values]


def study_set(name: str, prompts: Sequence[Prompt], draws: int) -> dict[str, Any]:
    """Fit all families to all prompts of a set."""
    rows: dict[str, list[dict[str, Any]]] = {family: [] for family in FAMILIES}
    with show_bar(f"fitting {name}", len(prompts), unit="prompts") as advance:
        for seed, prompt in enumerate(prompts):
            for family in FAMILIES:
                rows[family].append(measure_prompt(family, prompt, draws, seed))
            advance(1)
    reference = [row["log_score"] for row in rows[REFERENCE]]
    return {
        "prompts": len(prompts),
        "outputs": mean([len(prompt.outputs) for prompt in prompts]),
        "lengths": mean([len(prompt.lengths) for prompt in prompts]),
        "prompts_with_cut_outputs": sum(any(prompt.is_cut) for prompt in prompts),
        "families": {family: summarize(found, reference) for family, found in rows.items()},
    }


def format_set(name: str, found: Mapping[str, Any]) -> str:
    def format_cell(value: Any) -> str:
        if isinstance(value, list):
            return f"{value[0]:.3f} ({value[1]:.3f} to {value[2]:.3f})"
        return "" if value is None else f"{value:.3f}" if abs(value) < 1000 else f"{value:.2g}"

    about = f"{name}: {found['prompts']} prompts, {found['lengths']:.1f} lengths each"
    rows = [
        (family, *(format_cell(figures[key]) for key in TABLE))
        for family, figures in found["families"].items()
    ]
    return format_table(("family", *TABLE.values()), rows, about)


def draw_set(path: Path, name: str, found: Mapping[str, Any]) -> None:
    series = {
        family: list(zip(LEVELS.tolist(), figures["below"], strict=True))
        for family, figures in found["families"].items()
    }
    draw_plot(
        path,
        series,
        title=f"Calibration of quantiles on held-out outputs: {name}",
        x="share that the fit predicts below",
        y="share of held-out lengths below",
        diagonal=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sampled", type=Path, help="what sample_lengths wrote")
    parser.add_argument("--draws", type=int, default=99, help="of the bootstrap for each p-value")
    parser.add_argument("--plots", type=Path, default=Path("runs/lengths"))
    asked = parser.parse_args()
    sets = {"trace totals": read_trace_totals(), "trace steps": read_trace_steps()}
    if asked.sampled:
        sets["sampled outputs"] = read_sampled(asked.sampled)
    found = {name: study_set(name, prompts, asked.draws) for name, prompts in sets.items()}
    for name, figures in found.items():
        draw_set(asked.plots / f"{name.replace(' ', '-')}.png", name, figures)
        print(format_set(name, figures), end="\n\n")
    report(adequate_above=ADEQUATE, draws=asked.draws, levels=LEVELS.tolist(), sets=found)


if __name__ == "__main__":
    main()
