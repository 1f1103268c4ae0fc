"""The shown run's answer, or the one that it would give now, and what speaks against it."""

from __future__ import annotations

from rich.text import Text

from flashedge.client.run_figures import find_answer, list_warnings, vote_shares
from flashedge.client.run_view import RunView
from flashedge.client.words import format_count
from flashedge.literal import show_in_line
from flashedge.tui.state.dashboard import Dashboard
from flashedge.tui.state.scores import DIM, SCALE, score_colour
from flashedge.tui.widgets.panel import (
    COMPACT,
    Panel,
    label_line,
    stack_lines,
    warn_lines,
    wrap_parts,
)
from flashedge.tui.widgets.votes import draw_line

LABEL, INTERIM = "Answer", "Best so far"
_SHORT = 24
"""An answer of more cells stands in lines of its own, above its figures."""


class AnswerPanel(Panel):
    def __init__(self) -> None:
        super().__init__(id="answer")

    def draw(self, state: Dashboard, width: int, height: int) -> Text:
        run = state.shown
        if run is None:
            return label_line(LABEL, Text("none yet", style=f"not bold {DIM}"))
        warnings = warn_lines([show_in_line(text) for text in list_warnings(run)], width)
        label = LABEL if run.over else INTERIM
        answer = find_answer(run)
        if answer is None:
            head = [] if warnings else [_say_none(run)]
        elif self.is_attached and self.screen.has_class(COMPACT):
            head = [draw_line(label, vote_shares(run), answer, width)]
        else:
            head = draw_answer(run, label, answer, width, height - len(warnings))
        return stack_lines(*head, *warnings)


def _say_none(run: RunView) -> Text:
    return label_line(LABEL, Text("none" if run.over else "none yet", style=f"not bold {DIM}"))


def draw_answer(run: RunView, label: str, answer: str, width: int, height: int) -> list[Text]:
    """The answer set off, and beside it what speaks for it, in about `height` lines."""
    text = show_in_line(answer)
    chip = Text(f" {text} ", style=f"bold reverse {SCALE[-1]}" if run.over else "bold reverse")
    figures = _list_figures(run, answer)
    name = Text(f"{label} ", style="bold")
    if len(text) <= _SHORT:
        return wrap_parts([Text.assemble(name, chip), *figures], width)
    own = Text(text, style=f"bold {SCALE[-1]}" if run.over else "bold")
    head, lines = wrap_parts([name, *figures], width), wrap_parts([own], width)
    kept = max(height - len(head), 2)
    if len(lines) > kept:
        lines = [*lines[: kept - 1], Text("… its step has the rest", style=DIM)]
    return [*head, *lines]


def _list_figures(run: RunView, answer: str) -> list[Text]:
    """`15 of 16 paths`, `94% of the vote`, `certainty 0.92`, `score 0.75`."""
    shares = vote_shares(run)
    paths = sum(vote.count for vote, _ in shares)
    parts = []
    for vote, share in shares:
        if vote.answer == answer:
            parts.append(Text(f"{vote.count:,} of {format_count(paths, 'path')}"))
            parts.append(Text(f"{share:.0%} of the vote"))
    last = run.certainty[-1].certainty if run.certainty else None
    if last is not None:
        parts.append(Text(f"certainty {last:.2f}"))
    best = run.best if run.over else None
    score = run.nodes[best].score if best is not None else None
    if score is not None:
        parts.append(Text(f"score {score:.2f}", style=score_colour(score)))
    return parts
