"""What a calibration found: figures and a plot on the terminal, pictures in files."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flashedge.cli import output

if TYPE_CHECKING:
    from flashedge.certainty.calibration import Choice, Figures
    from flashedge.certainty.replay import Trace
    from flashedge.certainty.rules import Rule
    from flashedge.runtime.request.calibrations import Calibration

FEW = 50  # problems; fewer tell little
Series = Mapping[str, Sequence[tuple[float, float]]]


def print_choice(made: Calibration, choice: Choice, usual: Figures) -> None:
    """The rule and its figures on stdout, the plot and what to beware of on stderr."""
    told = made.provenance
    output.note(
        f"{made.strategy} on {made.pair}, n {told['n']}: {told['num_runs']} runs of"
        f" {told['num_problems']} problems, held against {told['reference']}"
    )
    series = frontier(choice)
    if sum(map(len, series.values())) > 2:
        output.note(_terminal(series))
    print(f"rule: {spelled(choice.rule)}")
    rows = [_row("chosen on all", choice.figures)]
    if choice.validated is not None:
        rows.append(_row("cross-validated", choice.validated))
    rows.append(_row("uncalibrated", usual))
    columns = ("", "accuracy", "of full", "difference, 95 %", "tokens", "of full", "saved")
    output.print_table(columns, rows, "")
    if told["num_problems"] < FEW:
        output.note(f"{told['num_problems']} problems tell little: use {FEW} or more")
    lost = choice.validated
    if lost is not None and lost.difference < -told["accuracy_floor"]:
        output.note(
            f"on problems that it was not chosen on it lost {-lost.difference:.1%}:"
            " calibrate on more problems"
        )


def spelled(rule: Rule | None) -> str:
    """A rule in words."""
    if rule is None:
        return "none: no early exit pays within the accuracy floor"
    if rule.policy == "length":
        return f"length: at {rule.detect} stop runs of at most {rule.max_tokens:,} tokens"
    if rule.policy.endswith("_curve"):
        steps = ", ".join(f"{need} up to {at:.2f}" for at, need in rule.curve)
        return f"{rule.policy} from {rule.detect} on, {rule.thresholds[0][0]}: {steps}"
    least = " and ".join(f"{name} at least {value:g}" for name, value in rule.thresholds)
    return f"{rule.policy} from {rule.detect} on: {least}"


def frontier(choice: Choice) -> Series:
    """Tokens of a run against accuracy."""
    chosen = choice.figures
    return {
        "even": [(p.tokens, p.accuracy) for p in choice.even]
        + [(chosen.full_tokens, chosen.full_accuracy)],
        "rules": [(p.tokens, p.accuracy) for p in choice.frontier],
        "chosen": [(chosen.tokens, chosen.accuracy)],
    }


def skyline(rule: Rule, traces: Sequence[Trace], measure: str) -> Series:
    """Certainty at the detection step against the progress that a run needed, and the most of those
    that were at least as sure."""
    from flashedge.certainty.candidates import needs
    from flashedge.certainty.skyline import Skyline

    found = sorted(set(needs(traces, rule.detect, measure)))
    apart = [point for at, need in found for point in ((at, float(need)), (math.nan, math.nan))]
    stairs: list[tuple[float, float]] = []
    for at, need in Skyline.fitted(found).steps:
        stairs += [(stairs[-1][0] if stairs else 0.0, need), (at, need)]
    return {"needed": apart, "skyline": stairs}


def draw(path: Path, choice: Choice, traces: Sequence[Trace], measure: str) -> list[Path]:
    """Write the frontier to `path` and the skyline beside it; the files. Raises ConfigError."""
    from flashedge.plots import line_plot

    x, y = "tokens of a run", "accuracy"
    line_plot(path, frontier(choice), title="Tokens to accuracy", x=x, y=y, points=True)
    if choice.rule is None:
        return [path]
    beside = path.with_name(f"{path.stem}-skyline{path.suffix}")
    x, y = f"{measure} at {choice.rule.detect}", "needed"
    series = skyline(choice.rule, traces, measure)
    line_plot(beside, series, title="What runs so sure needed", x=x, y=y, points=True)
    return [path, beside]


def _terminal(series: Series) -> str:
    from flashedge.plots import terminal_plot

    width = min(100, shutil.get_terminal_size().columns)
    x, y = "tokens of a run", "accuracy"
    return terminal_plot(series, title="Tokens to accuracy", x=x, y=y, width=width, height=18)


def _row(name: str, found: Figures) -> tuple[object, ...]:
    low, high = found.interval
    return (
        name,
        f"{found.accuracy:.1%}",
        f"{found.full_accuracy:.1%}",
        f"{found.difference:+.1%} [{low:+.1%}, {high:+.1%}]",
        f"{found.tokens:,.0f}",
        f"{found.full_tokens:,.0f}",
        f"{found.saved:.1%}",
    )
