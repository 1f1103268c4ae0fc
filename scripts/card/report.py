"""The report of a validation as Markdown, short enough to attach to an issue."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scripts.bench.flashtts.study import format_table
from scripts.card.parts import Figures, Part

MAX_CHARACTERS = 4000
"""Of a part's figures."""


def format_report(whole: Mapping[str, Any], parts: Sequence[Part]) -> str:
    """Format what `validate` writes to report.json."""
    kind = "Rehearsal on a CPU" if whole["rehearsal"] else "Validation on a card"
    lines = [f"# {kind}: pair {whole['pair']}", ""]
    lines += [f"- {name}: {value}" for name, value in whole["machine"].items()]
    if whole["rehearsal"]:
        lines += ["", "Nothing here was run on a card: times say nothing about one."]
    rows = [
        (result["name"], result["status"], f"{result['seconds']:.0f}", "; ".join(result["faults"]))
        for result in whole["parts"]
    ]
    lines += ["", format_table(("part", "result", "seconds", "why it failed"), rows, "Parts")]
    questions = {part.name: part.question for part in parts}
    for result in whole["parts"]:
        if result["figures"] is not None:
            show = SUMMARIES.get(result["name"], _format_json)
            lines += ["", f"## {questions[result['name']]}", "", _try(show, result["figures"])]
    return "\n".join(lines) + "\n"


def _try(show: Callable[[Figures], str], figures: Figures) -> str:
    """A part that failed may lack what its summary shows."""
    try:
        return show(figures)
    except (KeyError, TypeError):
        return _format_json(figures)


def _format_json(figures: Figures) -> str:
    return f"```json\n{json.dumps(figures, indent=1)[:MAX_CHARACTERS]}\n```"


def _format_checks(figures: Figures) -> str:
    rows = [(c["name"], c["verdict"], c["detail"]) for c in figures["value"]]
    return format_table(("check", "result", "detail"), rows, "doctor")


def _format_ladder(figures: Figures) -> str:
    rows = [
        (
            row["n"],
            row["rung"],
            f"{row['latency_s']:.2f}",
            f"{row['goodput']:.1f}",
            _format_gain(row["goodput_gain"]),
            _format_gain(row["gain_over_suffix"]),
            row["same_trees"],
        )
        for row in figures["rungs"]
    ]
    head = ("n", "rung", "seconds", "goodput", "over the stock loop", "over suffix", "same trees")
    return format_table(head, rows, "Ladder")


def _format_gain(gain: Mapping[str, float] | None) -> str:
    if gain is None:
        return "-"
    return f"{gain['median']:.2f} ({gain['median_low']:.2f}-{gain['median_high']:.2f})"


SUMMARIES: Mapping[str, Callable[[Figures], str]] = {
    "doctor": _format_checks,
    "ladder": _format_ladder,
}
