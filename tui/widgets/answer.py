"""The answer of the shown run, or its best so far, with warnings, and the votes for all answers."""

from rich.text import Text

from flashedge.client.run_figures import compute_vote_shares, find_answer, list_warnings
from flashedge.client.run_view import RunView
from flashedge.client.words import format_count
from flashedge.literal import show_in_line
from flashedge.tui.colours import DIM, SCALE, WARNING, choose_score_colour, draw_track
from flashedge.tui.state import Dashboard
from flashedge.tui.widgets.panel import (
    COMPACT,
    LABEL_CELLS,
    Panel,
    dim_line,
    label_line,
    shorten,
    stack_lines,
    wrap_parts,
)
from flashedge.types import Vote

Shares = tuple[tuple[Vote, float], ...]
"""Each answer's vote with its share of all weights, in [0, 1]."""

CHOSEN = "★"

LABEL, INTERIM = "Answer", "Best so far"
_SHORT = 24
"""Most characters of an answer that stands beside its figures: with it, a line of 80 cells
still holds the votes. A longer answer has its own lines below its figures."""


class AnswerPanel(Panel):
    def __init__(self) -> None:
        super().__init__(self._draw_state, id="answer")

    def _draw_state(self, state: Dashboard, width: int, height: int) -> Text:
        run = state.shown
        if run is None:
            return dim_line(LABEL, "none yet")
        warned = (Text(f"! {show_in_line(w)}", f"bold {WARNING}") for w in list_warnings(run))
        warnings = [line for text in warned for line in wrap_parts([text], width)]
        label = LABEL if run.over else INTERIM
        answer = find_answer(run)
        if answer is None:
            head = [] if warnings else [dim_line(LABEL, "none" if run.over else "none yet")]
        elif self.screen.has_class(COMPACT):
            head = [draw_line(label, compute_vote_shares(run), answer, width)]
        else:
            head = draw_answer(run, label, answer, width, height - len(warnings))
        return stack_lines(*head, *warnings)


def draw_answer(run: RunView, label: str, answer: str, width: int, height: int) -> list[Text]:
    """Draw the answer and the figures that support it in at most `height` lines. Of a long answer
    two lines are shown in any case."""
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
    shares = compute_vote_shares(run)
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
        parts.append(Text(f"score {score:.2f}", style=choose_score_colour(score)))
    return parts


def draw_votes(state: Dashboard, width: int, height: int) -> Text:
    """Draw how many paths gave each answer, its share of the vote, and which one is chosen."""
    run = state.shown
    shares = compute_vote_shares(run) if run is not None else ()
    if run is None or not shares:
        is_over = run is not None and run.over
        why = "no votes: no path ended with an answer" if is_over else "no answers yet"
        return Text(why, style=DIM)
    return stack_lines(*draw_table(shares, find_answer(run), width, height))


def draw_table(shares: Shares, chosen: str | None, width: int, height: int) -> list[Text]:
    """Draw a header and a line for each answer. The last line counts those that have no room."""
    # Beside the answer stand the mark (2 cells), the paths (9), the track and the share (5).
    room = min(max([6, *(len(show_in_line(v.answer)) for v, _ in shares)]), max(width - 28, 8))
    track = max(width - room - 16, 4)
    rows = [Text(f"  {'answer':<{room}}  paths  {'share':>{track + 5}}", style=DIM)]
    shown = shares[: height - 1 if len(shares) < height else max(height - 2, 1)]
    for vote, share in shown:
        is_chosen = vote.answer == chosen
        colour = SCALE[-1] if is_chosen else SCALE[0]
        row = Text(no_wrap=True)
        answer = f"{CHOSEN if is_chosen else ' '} {_cut(vote.answer, room):<{room}}"
        row.append(answer, f"bold {colour}" if is_chosen else "")
        row.append(f"  {f'×{vote.count}':>5}  ")
        row.append(draw_track(share, track), colour)
        rows.append(row.append(f" {share:>4.0%}"))
    if len(shown) < len(shares):
        rest = shares[len(shown) :]
        paths = sum(vote.count for vote, _ in rest)
        left_off = f"  {format_count(len(rest), 'more answer')} from {format_count(paths, 'path')}"
        rows.append(Text(left_off, style=DIM))
    return rows


def draw_line(label: str, shares: Shares, chosen: str | None, width: int) -> Text:
    """Draw the chosen answer, as many others as fit into the line, and how many are left out."""
    parts = [
        Text(f"{_cut(vote.answer, 12)} ×{vote.count} {share:.0%}", style="not bold")
        for vote, share in shares
        if vote.answer != chosen
    ]
    if chosen is not None:
        figures = [f" ×{vote.count} {share:.0%}" for vote, share in shares if vote.answer == chosen]
        star = Text(f"{CHOSEN} {_cut(chosen, max(width - 30, 12))}", f"bold {SCALE[-1]}")
        parts.insert(0, star.append("".join(figures), "not bold default"))
    line = label_line(label)
    for shown in range(len(parts), 0, -1):
        rest = [Text(f"{len(parts) - shown} more")] if shown < len(parts) else []
        joined = Text(" · ", style="not bold").join((*parts[:shown], *rest))
        line = label_line(label, " " if len(label) == LABEL_CELLS else "", joined)
        if line.cell_len <= width:
            break
    return line


def _cut(answer: str, width: int) -> str:
    return shorten(show_in_line(answer), width)
