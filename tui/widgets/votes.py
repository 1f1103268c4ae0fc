"""The answers so far: how many paths gave each, and its share of the vote."""

from __future__ import annotations

from rich.text import Text

from flashedge.client.run_figures import vote_shares
from flashedge.client.run_view import RunView
from flashedge.literal import show_in_line
from flashedge.tui.state.dashboard import Dashboard
from flashedge.tui.state.scores import DIM, SCALE, draw_bar
from flashedge.tui.widgets.panel import Panel, label_line, stack_lines
from flashedge.types import Vote


class VotesPanel(Panel):
    title = "Votes"

    def __init__(self) -> None:
        super().__init__(id="votes")

    def draw(self, state: Dashboard, width: int, height: int) -> Text:
        run = state.shown
        shares = vote_shares(run) if run is not None else ()
        if height < 2:
            return draw_line(shares, width)
        if not shares:
            return Text(_explain(run), style=DIM)
        shown = shares[: height if len(shares) <= height else height - 1]
        rows = [_draw_vote(vote, share, width) for vote, share in shown]
        if len(shown) < len(shares):
            rest = shares[len(shown) :]
            paths = sum(vote.count for vote, _ in rest)
            rows.append(Text(f"{len(rest)} more answers from {paths} paths", style=DIM))
        return stack_lines(*rows)


def draw_line(shares: tuple[tuple[Vote, float], ...], width: int) -> Text:
    """As many votes as the line holds, most frequent first, and how many answers are not shown."""
    if not shares:
        return label_line("Votes", Text("no answers yet", style=f"not bold {DIM}"))
    parts = [f"{_one_line(v.answer, 12)} ×{v.count} {share:.0%}" for v, share in shares]
    for shown in range(len(parts), 0, -1):
        rest = [f"{len(parts) - shown} more"] if shown < len(parts) else []
        line = label_line("Votes", " · ".join((*parts[:shown], *rest)))
        if line.cell_len <= width:
            break
    return line


def _explain(run: RunView | None) -> str:
    if run is None or not run.over:
        return "no answers yet"
    return "no votes: no path ended with an answer"


def _draw_vote(vote: Vote, share: float, width: int) -> Text:
    """`46           ×12 ████████░░  92%`."""
    room = min(max(width - 30, 8), 30)
    text = Text(f"{_one_line(vote.answer, room):<{room}} ×{vote.count:<4}", style="bold")
    track = max(width - room - 6 - 5, 4)
    text.append(draw_bar(share, track).replace(" ", "░"), style=f"not bold {SCALE[0]}")
    return text.append(f" {share:>4.0%}", style="not bold")


def _one_line(answer: str, width: int) -> str:
    text = show_in_line(answer)
    return text if len(text) <= width else f"{text[: width - 1]}…"
