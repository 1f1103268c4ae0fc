"""The tables of the `lengths` commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from flashedge.cli import output

if TYPE_CHECKING:
    from flashedge.runtime.lengths.accuracy import Accuracy

COLUMNS = ("", "median error", "95 %", "log score", "pinball", "tau", "within 50, 80, 90 %")


def print_accuracies(accuracies: Mapping[str, Accuracy]) -> None:
    """Print one row for each predictor, and what the columns mean."""
    prompts = next(iter(accuracies.values())).prompts
    output.say(f"on {prompts} held-out prompts:")
    output.print_table(COLUMNS, [_format(name, one) for name, one in accuracies.items()], "")
    output.note("median error: of the predicted median, as a share of the true one")
    output.note("log score: nats of one output, lower is better; pinball: lower is better")
    output.note("tau: 1 means the prompts are in the order of their true lengths")
    output.note("within: the share of outputs in the central 50, 80 and 90 % of the prediction")


def _format(name: str, one: Accuracy) -> tuple[object, ...]:
    return (
        name,
        _show(one.median_error, ".1%"),
        " to ".join(_show(bound, ".1%") for bound in one.median_error_95),
        _show(one.log_score, ".3f"),
        _show(one.pinball, ".4f"),
        _show(one.tau, ".3f"),
        ", ".join(_show(share, ".0%") for share in one.coverage),
    )


def _show(value: float, form: str) -> str:
    return "-" if value != value else format(value, form)  # NaN: nothing can be compared
