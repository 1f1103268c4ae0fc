"""The measured part of the model card, from the report of `evaluate`: Markdown."""

from __future__ import annotations

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


def card(report: Mapping[str, Any]) -> str:
    """report: with `exact checker`, as `evaluate` writes it."""
    parts = [
        choices(report["accuracy"]),
        paired(report["paired"]),
        verifier(report["verifier"]),
        groups("family", {FAMILIES[k]: v for k, v in report["by_family"].items()}),
        groups("steps", report["by_steps"]),
        checked(report["exact checker"]),
    ]
    return "\n\n".join(parts)


def choices(accuracy: Mapping[str, Any]) -> str:
    """Ways of choosing by n."""
    sizes = sorted({int(n) for key in accuracy for n in re.findall(r"^pass@(\d+)$", key)})
    blank = [""] * (len(sizes) - 1)
    rows = [["greedy", percent(accuracy["greedy"]), *blank]]
    rows.append(["one sample (mean)", *blank, percent(accuracy["sample"])])
    rows += [
        [way, *(percent(accuracy[key.format(n=n)]) for n in sizes)] for way, key in WAYS.items()
    ]
    return table(["choice", *(f"n = {n}" for n in sizes)], rows)


def paired(differences: Mapping[str, Any]) -> str:
    """Beam search against the two others, problem by problem."""
    return table(
        ["paired", "points"],
        [[name.replace("@", "-"), points(f)] for name, f in differences.items()],
    )


def verifier(figures: Mapping[str, Any]) -> str:
    """Right against wrong final answers."""
    within, pooled = figures["within-problem AUC (last)"], figures["pooled AUC (last), no gate"]
    return (
        "Reward model, right against wrong final answers by the last step: within-problem AUC "
        f"{within['value']:.3f} ({within['low']:.3f}–{within['high']:.3f}, {within['count']} "
        f"problems with both), pooled {pooled['value']:.3f}."
    )


def groups(name: str, found: Mapping[str, Any]) -> str:
    """Accuracy by family or by number of steps, as far as the report has it: at the largest n."""
    columns = list(next(iter(found.values())))
    rows = [
        [key, str(row["greedy"]["count"]), *(percent(row[column]) for column in columns)]
        for key, row in found.items()
    ]
    return table([name, "problems", *columns], rows)


def checked(judged: Mapping[str, Any]) -> str:
    """What only the exact checker tells."""
    low, high = judged["expected calibration error 95 %"]
    named = ", ".join(f"{e['kind']} {e['share']:.0%}" for e in judged["commonest errors"][:8])
    ceiling = next(f"{name}: {percent(f)}" for name, f in judged.items() if name.startswith("beam"))
    return (
        f"By the exact checker, {judged['chains']:,} chains: expected calibration error of steps "
        f"{judged['expected calibration error (steps)']:.3f} ({low:.3f}–{high:.3f}), step AUC "
        f"{judged['step AUC (pooled, no gate)']:.3f}, "
        f"{judged['steps right given what was stated']:.0%} of the steps right given what was "
        f"stated before. {ceiling}. First errors of the chains: {named}."
    )


def percent(figure: Mapping[str, Any]) -> str:
    """`62.4 % (55–69)`."""
    low, high = figure.get("95 %") or (figure["low"], figure["high"])
    return f"{100 * figure['value']:.1f} % ({100 * low:.0f}–{100 * high:.0f})"


def points(figure: Mapping[str, Any]) -> str:
    """`+17.0 (+11.3 to +22.7)`."""
    value, low, high = (100 * figure[name] for name in ("value", "low", "high"))
    return f"{value:+.1f} ({low:+.1f} to {high:+.1f})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
