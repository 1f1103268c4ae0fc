"""Format the measured part of the model card as Markdown, from the report of `evaluate`."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

WAYS = {
    "majority": "majority@{n}",
    "best of n by the reward model (last step)": "best-of-{n} (last)",
    "vote weighted by it (last step)": "weighted vote@{n} (last)",
    "beam search, 4 children": "beam-{n}",
    "some chain right": "pass@{n}",
}
FAMILIES = {"expression": "sums", "story": "events", "variables": "definitions"}


def format_card(report: Mapping[str, Any]) -> str:
    """report: as `evaluate` writes it, with `exact checker`."""
    parts = [
        format_choices(report["accuracy"]),
        format_paired(report["paired"]),
        format_verifier(report["verifier"]),
        format_groups("family", {FAMILIES[k]: v for k, v in report["by_family"].items()}),
        format_groups("steps", report["by_steps"]),
        format_checks(report["exact checker"]),
    ]
    return "\n\n".join(parts)


def format_choices(accuracy: Mapping[str, Any]) -> str:
    """Format the accuracy of each way to choose an answer, by n."""
    sizes = sorted({int(n) for key in accuracy for n in re.findall(r"^pass@(\d+)$", key)})
    blank = [""] * (len(sizes) - 1)
    rows = [["greedy", format_percent(accuracy["greedy"]), *blank]]
    rows.append(["one sample (mean)", *blank, format_percent(accuracy["sample"])])
    rows += [
        [way, *(format_percent(accuracy[key.format(n=n)]) for n in sizes)]
        for way, key in WAYS.items()
    ]
    return format_table(["choice", *(f"n = {n}" for n in sizes)], rows)


def format_paired(differences: Mapping[str, Any]) -> str:
    """Format the paired differences between beam search and the other ways."""
    return format_table(
        ["paired", "points"],
        [[name.replace("@", "-"), format_points(f)] for name, f in differences.items()],
    )


def format_verifier(figures: Mapping[str, Any]) -> str:
    """Format how well the reward model tells right from wrong final answers."""
    within, pooled = figures["within-problem AUC (last)"], figures["pooled AUC (last), no gate"]
    return (
        "Reward model, right against wrong final answers by the last step: within-problem AUC "
        f"{within['value']:.3f} ({within['low']:.3f}–{within['high']:.3f}, {within['count']} "
        f"problems with both), pooled {pooled['value']:.3f}."
    )


def format_groups(name: str, found: Mapping[str, Any]) -> str:
    """Format the accuracy by family or by number of steps, at the largest n."""
    columns = list(next(iter(found.values())))
    rows = [
        [key, str(row["greedy"]["count"]), *(format_percent(row[column]) for column in columns)]
        for key, row in found.items()
    ]
    return format_table([name, "problems", *columns], rows)


def format_checks(judged: Mapping[str, Any]) -> str:
    """Format the exact checker's figures."""
    low, high = judged["expected calibration error 95 %"]
    named = ", ".join(f"{e['kind']} {e['share']:.0%}" for e in judged["commonest errors"][:8])
    ceiling = next(
        f"{name}: {format_percent(f)}" for name, f in judged.items() if name.startswith("beam")
    )
    return (
        f"By the exact checker, {judged['chains']:,} chains: expected calibration error of steps "
        f"{judged['expected calibration error (steps)']:.3f} ({low:.3f}–{high:.3f}), step AUC "
        f"{judged['step AUC (pooled, no gate)']:.3f}, "
        f"{judged['steps right given what was stated']:.0%} of the steps right given what was "
        f"stated before. {ceiling}. First errors of the chains: {named}."
    )


def format_percent(figure: Mapping[str, Any]) -> str:
    """Format a share with its interval: `62.4 % (55–69)`."""
    low, high = figure.get("95 %") or (figure["low"], figure["high"])
    return f"{100 * figure['value']:.1f} % ({100 * low:.0f}–{100 * high:.0f})"


def format_points(figure: Mapping[str, Any]) -> str:
    """Format a difference in points with its interval: `+17.0 (+11.3 to +22.7)`."""
    value, low, high = (100 * figure[name] for name in ("value", "low", "high"))
    return f"{value:+.1f} ({low:+.1f} to {high:+.1f})"


def format_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
