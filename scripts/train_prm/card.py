"""The verifier's card: a Markdown page of what it was made of, what it gains, and its limits."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flashedge.plots import draw_plot
from scripts.train_pair.card import format_percent, format_points, format_table

LIMITS = """\
## What it can't do

- It was trained on the solutions of one generator to one kind of problem, and judged on no other.
  How it ranks the solutions of another generator, or of harder problems, is not known.
- A step's label is whether its path ended right. So a score is the chance that the path as it
  stands will end right, not whether the step itself is; an early score is mostly about the problem.
- It reads only the form that it was trained on: the same system prompt, steps that end with a blank
  line, and the answer in a box.
- A wrong solution that reads like a right one gets a high score. The table of choices says how
  often the best score belongs to a right answer."""


def write_card(report: Mapping[str, Any], made: Mapping[str, Any], folder: Path) -> None:
    """Write card.md and the picture of its calibration. report: of `build_report`; made: what
    train.json says."""
    rows = report["reliability"]["rows"]
    points = [(row["said"], row["true"]) for row in rows]
    draw_plot(
        folder / "calibration.png",
        {"last step": points},
        title="How often a score comes true",
        x="score of the last step",
        y="share of right solutions",
        diagonal=True,
        points=True,
    )
    (folder / "card.md").write_text(format_card(report, made), encoding="utf-8")


def format_card(report: Mapping[str, Any], made: Mapping[str, Any]) -> str:
    n, found = report["n"], report["verifier"]
    pooled, error = found["pooled AUC (last), no gate"], found["expected calibration error"]
    every = report["auc_within_all"]
    parts = [
        f"# A process reward model on {made['generator']}",
        f"Trained for {made['seconds']:.0f} s on {made['device']}: {made['steps']:,} updates,"
        f" {made['tokens'] / 1e6:.2f} M tokens, which are {made['epochs']:.2f} epochs of"
        f" {made['solutions']:,} solutions of {made['problems']:,} problems that have right and"
        f" wrong ones ({made['share_right']:.0%} are right); rank {made['rank']}. Calibrated on"
        f" {made['calibrated_on']} other problems (slope {made['slope']:.2f}, offset"
        f" {made['offset']:+.2f}). Judged on {report['problems']:,} problems that are in neither,"
        f" {n} solutions each. Brackets are 95 % intervals by a bootstrap over the problems.",
        "## Does it tell right from wrong?",
        "How probably a right solution scores above a wrong one of the same problem, among those"
        " that have an answer, and among all:",
        format_table(
            ["score of", "AUC within problems", "problems with both", "all solutions", "problems"],
            [
                [
                    f"the {place} step",
                    *(format_share(figure), str(figure["count"])),
                    *(format_share(every[place]), str(every[place]["count"])),
                ]
                for place, figure in report["auc_within"].items()
            ],
        ),
        f"Pooled over all problems, by the last step: {format_share(pooled)}. That also counts"
        " telling easy problems from hard ones, which helps no search.",
        "## What it gains",
        format_table(
            [f"{n} solutions a problem", "right", "points over the majority"],
            [
                [
                    way,
                    format_percent(figure),
                    format_points(report["over_majority"][way])
                    if way in report["over_majority"]
                    else "",
                ]
                for way, figure in report["accuracy"].items()
            ],
        ),
        "## Are scores probabilities?",
        f"Expected calibration error of all steps: {format_share(error)}; of last steps:"
        f" {report['reliability']['error']:.3f}.",
        format_table(
            ["said", "came true", "solutions"],
            [
                [f"{row['said']:.2f}", f"{row['true']:.2f}", f"{row['count']:,}"]
                for row in report["reliability"]["rows"]
            ],
        ),
        "![share of right solutions by score](calibration.png)",
        LIMITS,
    ]
    return "\n\n".join(parts) + "\n"


def format_share(figure: Mapping[str, Any]) -> str:
    """Format a figure between 0 and 1 with its interval: `0.731 (0.70–0.76)`."""
    return f"{figure['value']:.3f} ({figure['low']:.3f}–{figure['high']:.3f})"
