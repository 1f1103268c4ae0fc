"""The answers so far: how many paths gave each, its share of the vote, and which is chosen."""

from __future__ import annotations

from rich.text import Text

from flashedge.client.run_figures import find_answer, vote_shares
from flashedge.client.run_view import RunView
from flashedge.literal import show_in_line
from flashedge.tui.state.dashboard import Dashboard
from flashedge.tui.state.scores import DIM, SCALE, draw_bar
from flashedge.tui.widgets.panel import Panel, label_line, stack_lines
from flashedge.types import Vote

CHOSEN = "★"
"""As on the best path of the tree."""

Shares = tuple[tuple[Vote, float], ...]


class VotesPanel(Panel):
    title = "Votes"

    def __init__(self) -> None:
        super().__init__(id="votes")

    def draw(self, state: Dashboard, width: int, height: int) -> Text:
        run = state.shown
        shares = vote_shares(run) if run is not None else ()
        if run is None or not shares:
            return Text(_explain(run), style=DIM)
        return stack_lines(*draw_table(shares, find_answer(run), width, height))


def draw_table(shares: Shares, chosen: str | None, width: int, height: int) -> list[Text]:
    """A header, and a line for each answer. The last line counts those for which there is none."""
    room = min(max([6, *(len(show_in_line(v.answer)) for v, _ in shares)]), max(width - 28, 8))
    track = max(width - room - 16, 4)
    rows = [Text(f"  {'answer':<{room}}  paths  {'share':>{track + 5}}", style=DIM)]
    shown = shares[: height - 1 if len(shares) < height else max(height - 2, 1)]
    for vote, share in shown:
        is_chosen = vote.answer == chosen
        colour = SCALE[-1] if is_chosen else SCALE[0]
        row = Text(no_wrap=True)
        answer = f"{CHOSEN if is_chosen else ' '} {_shorten(vote.answer, room):<{room}}"
        row.append(answer, f"bold {colour}" if is_chosen else "")
        row.append(f"  {f'×{vote.count}':>5}  ")
        row.append(draw_bar(share, track).replace(" ", "░"), colour)
        rows.append(row.append(f" {share:>4.0%}"))
    if len(shown) < len(shares):
        rest = shares[len(shown) :]
        paths = sum(vote.count for vote, _ in rest)
        rows.append(Text(f"  {len(rest)} more answers from {paths} paths", style=DIM))
    return rows


def draw_line(label: str, shares: Shares, chosen: str | None, width: int) -> Text:
    """The chosen answer, as many others as the line holds, and how many are not shown."""
    parts = [
        Text(f"{_shorten(vote.answer, 12)} ×{vote.count} {share:.0%}", style="not bold")
        for vote, share in shares
        if vote.answer != chosen
    ]
    if chosen is not None:
        figures = [f" ×{vote.count} {share:.0%}" for vote, share in shares if vote.answer == chosen]
        star = Text(f"{CHOSEN} {_shorten(chosen, max(width - 30, 12))}", f"bold {SCALE[-1]}")
        parts.insert(0, star.append("".join(figures), "not bold default"))
    line = label_line(label)
    for shown in range(len(parts), 0, -1):
        rest = [Text(f"{len(parts) - shown} more")] if shown < len(parts) else []
        joined = Text(" · ", style="not bold").join((*parts[:shown], *rest))
        line = label_line(label, " " if len(label) > 10 else "", joined)
        if line.cell_len <= width:
            break
    return line


def _explain(run: RunView | None) -> str:
    if run is None or not run.over:
        return "no answers yet"
    return "no votes: no path ended with an answer"


def _shorten(answer: str, width: int) -> str:
    text = show_in_line(answer)
    return text if len(text) <= width else f"{text[: width - 1]}…"
