"""The output of `calibrate`: a table and a plot on the terminal, pictures in files."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashedge.cli import output

if TYPE_CHECKING:
    from flashedge.certainty.calibration import Choice, Comparison
    from flashedge.certainty.policies import Rule
    from flashedge.runtime.request.calibrations import Calibration

Series = Mapping[str, Sequence[tuple[float, float]]]
COLUMNS = (
    *("", "accuracy", "of full", "difference, 95 %"),
    *("loss at most", "tokens", "of full", "saved"),
)
LABELS: Mapping[str, Any] = {"title": "Tokens to accuracy", "x": "tokens of a run", "y": "accuracy"}


def print_choice(
    found: Calibration, choice: Choice, usual: Comparison, stored: Calibration | None
) -> None:
    """Print the rule and its figures on stdout, and the plot and advice on stderr.

    usual: the strategy's rule without calibration. stored: an earlier calibration that is better.
    """
    from flashedge.plots import draw_text_plot

    n, max_loss = found.provenance["n"], found.provenance["max_loss"]
    output.note(
        f"{found.strategy} on {found.pair}, n {n}: {found.num_problems} problems,"
        f" at most {max_loss:.1%} of accuracy may be lost"
    )
    series = build_frontier(choice)
    if sum(map(len, series.values())) > 2:
        width = min(100, shutil.get_terminal_size().columns)
        output.note(draw_text_plot(series, **LABELS, width=width, height=18))
    output.say(f"rule: {describe_rule(choice.rule)}")
    compared = {"chosen": choice.comparison} if choice.rule is not None else {}
    if choice.validated is not None:
        compared["cross-validated"] = choice.validated
    if choice.smaller_cap is not None:
        cap, smaller = choice.smaller_cap
        compared[f"smaller cap: n {cap.cap}"] = smaller
    compared["uncalibrated"] = usual
    rows = [_format_row(name, describe_comparison(one)) for name, one in compared.items()]
    if stored is not None and stored.loss_bound is not None:
        name = f"stored ({stored.num_problems} problems)"
        rows.append(_format_row(name, stored.provenance["chosen"]))
    output.print_table(COLUMNS, rows, "")
    if stored is not None:
        output.say(f"stored rule: {describe_rule(stored.rule)} ({stored.date})")
    if choice.rule is None:
        output.note(_explain_none(choice, max_loss))


def describe_rule(rule: Rule | None) -> str:
    if rule is None:
        return "none"
    least = " and ".join(f"{name} at least {value:g}" for name, value in rule.thresholds)
    return f"{rule.policy} from {rule.detect} on: {least}"


def build_frontier(choice: Choice) -> Series:
    """Accuracy over the tokens of a run."""
    chosen = choice.comparison
    return {
        "even": [(p.tokens, p.accuracy) for p in choice.even]
        + [(chosen.full_tokens, chosen.full_accuracy)],
        "rules": [(p.tokens, p.accuracy) for p in choice.frontier],
        "chosen": [(chosen.tokens, chosen.accuracy)],
    }


def draw(path: Path, choice: Choice) -> None:
    """Draw the frontier. Raises ConfigError."""
    from flashedge.plots import draw_plot

    draw_plot(path, build_frontier(choice), **LABELS, points=True)


def _explain_none(choice: Choice, max_loss: float) -> str:
    advice = f"no rule keeps the loss below {max_loss:.1%} and saves more than a smaller n"
    if choice.smaller_cap is not None:
        cap, compared = choice.smaller_cap
        advice += f"; -n {cap.cap} saves {compared.saved:.1%} within the same bound"
    return f"{advice}. `--early-exit` without a calibration uses the strategy's defaults"


def describe_comparison(found: Comparison) -> dict[str, Any]:
    """A comparison as calibrations keep it."""
    return {
        "accuracy_before": found.full_accuracy,
        "accuracy_after": found.accuracy,
        "difference_95": list(found.interval),
        "loss_bound": found.loss_bound,
        "tokens_before": found.full_tokens,
        "tokens_after": found.tokens,
        "saved": found.saved,
    }


def _format_row(name: str, found: Mapping[str, Any]) -> tuple[object, ...]:
    before, after = found["accuracy_before"], found["accuracy_after"]
    low, high = found["difference_95"]
    return (
        name,
        f"{after:.1%}",
        f"{before:.1%}",
        f"{after - before:+.1%} [{low:+.1%}, {high:+.1%}]",
        f"{found['loss_bound']:.1%}",
        f"{found['tokens_after']:,.0f}",
        f"{found['tokens_before']:,.0f}",
        f"{found['saved']:.1%}",
    )
