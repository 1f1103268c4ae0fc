"""Certainty over the tokens spent, with thresholds and early exit. Until there is a certainty: best
and mean score of each level."""

from __future__ import annotations

from rich.text import Text

from flashedge.client.run_figures import (
    LevelScores,
    describe_progress,
    describe_rest,
    duration_text,
    find_thresholds,
    level_scores,
    paths_wanted,
)
from flashedge.client.run_view import CertaintyPoint, RunView
from flashedge.client.words import describe_wait, format_count
from flashedge.tui.state.dashboard import Dashboard
from flashedge.tui.state.scores import BLOCKS, DIM, SCALE, draw_meter
from flashedge.tui.widgets.panel import Panel, label_line, stack_lines

_AXIS = 5
EXIT = "▼"
THRESHOLD = "┄"


class CertaintyPanel(Panel):
    title = "Progress"

    def __init__(self) -> None:
        super().__init__(id="certainty")

    def draw(self, state: Dashboard, width: int, height: int) -> Text:
        run = state.shown or _find_waiting(state)
        if run is None:
            self.border_title = self.title
            return label_line(
                "Progress" if height < 2 else "", Text("no run", style=f"not bold {DIM}")
            )
        known = _known_points(run)
        if height < 5 or width < 24:
            return _draw_line(state, run, width)
        head = stack_lines(_draw_progress(state, run), *_draw_tokens(state, run))
        height -= len(head.plain.splitlines()) - 1
        levels = level_scores(run)
        if len(known) > 1 or (known and not levels):
            self.border_title = "Certainty over tokens"
            return stack_lines(head, *draw_chart(run, width, height - 2), _summarize(run))
        if levels:
            self.border_title = "Scores by level"
            end = [_summarize(run)] if known else []
            return stack_lines(head, *draw_levels(levels, width, height - 1 - len(end)), *end)
        self.border_title = self.title
        return stack_lines(head, *_draw_done(run, width), *_draw_limits(run))


def _find_waiting(state: Dashboard) -> RunView | None:
    """The chosen run, if it waits: it has no events yet."""
    row = state.chosen_row
    return None if row is None or row.position is None else RunView(id=row.id)


def _known_points(run: RunView) -> list[tuple[int, float]]:
    """(tokens, certainty) where there was one."""
    return [(p.tokens, p.certainty) for p in run.certainty if p.certainty is not None]


def _last_point(run: RunView) -> CertaintyPoint | None:
    return run.certainty[-1] if run.certainty else None


def _draw_progress(state: Dashboard, run: RunView) -> Text:
    """`level 7 · 0/16 paths · 12 s`, and what is left where that can be estimated."""
    elapsed_s, row = state.shown_elapsed_s, state.chosen_row
    if run.state == "waiting":
        known = "" if row is None else describe_wait(row.position, row.starts_in_s)
        return Text(f"waiting{known and ', '}{known}", style="bold")
    parts = [describe_progress(run)]
    if elapsed_s is not None:
        parts.append(duration_text(elapsed_s))
        parts += [rest] if (rest := describe_rest(run, elapsed_s)) else []
    if run.over:
        parts.append(run.state)
    return Text(" · ".join(parts), style="bold")


def _draw_tokens(state: Dashboard, run: RunView) -> list[Text]:
    """The tokens drawn so far, beside how long a path is predicted to be. None if nobody knows."""
    if not state.prediction:
        return []
    if not run.all_tokens:
        return [Text(f"tokens of a path: {state.prediction}")]
    return [Text(f"{format_count(run.all_tokens, 'token')} · a path {state.prediction}")]


def _draw_line(state: Dashboard, run: RunView, width: int) -> Text:
    """The whole panel in one line. The bars of the levels take what the figures leave."""
    last = _last_point(run)
    if last is not None and last.certainty is not None:
        figures = f" {last.certainty:.2f} of {last.answers} answers at {last.tokens:,} tokens"
        figures += ", low verifier score" if run.is_distrusted else ""
        limits = "".join(f" {THRESHOLD}{v:.2f}" for v in find_thresholds(run.config).values())
        stop = f" {EXIT} {run.exit.reason}" if run.exit else ""
        return label_line("Certainty", draw_meter(last.certainty, 10), figures + limits + stop)
    levels = level_scores(run)
    line = label_line("Progress", _draw_progress(state, run))
    if run.state == "waiting":
        length = f" · a path {state.prediction}" if state.prediction else ""
        return line.append(length, "not bold")
    if levels:
        figures = f"{levels[-1].best:.2f} mean {levels[-1].mean:.2f}"
        room = min(12, width - line.cell_len - len(f"  best  {figures}"))
        blocks = "".join(_block(level.best) for level in levels[-room:]) if room > 0 else ""
        line.append(f"  best {blocks} {figures}" if blocks else f"  best {figures}", "not bold")
    return line


def _block(score: float) -> str:
    return BLOCKS[max(1, round(min(max(score, 0.0), 1.0) * 8))]


def _draw_done(run: RunView, width: int) -> list[Text]:
    """Paths done of those wanted, of a run that nothing scores."""
    n = paths_wanted(run)
    return [draw_meter(run.paths_done / n, width)] if n else []


def _draw_limits(run: RunView) -> list[Text]:
    return [
        Text(f"{THRESHOLD}{THRESHOLD} {name}: exit at {value:.2f}", style=DIM)
        for name, value in find_thresholds(run.config).items()
    ]


def _summarize(run: RunView) -> Text:
    last = _last_point(run)
    assert last is not None, "a chart has points"
    value = "-" if last.certainty is None else f"{last.certainty:.2f}"
    text = Text(f"certainty {value} of {last.answers} answers", style="bold")
    if run.is_unlikely:
        text.append("  an unlikely answer", style="bold yellow")
    elif run.is_distrusted:
        text.append("  low verifier score", style="bold yellow")
    for name, limit in find_thresholds(run.config).items():
        text.append(f"  {THRESHOLD} {name} {limit:.2f}", style="not bold")
    if run.exit is not None:
        text.append(f"  {EXIT} exit: {run.exit.reason.replace('_', ' ')}", style="bold")
    elif run.state == "finished":
        text.append("  no early exit", style=f"not bold {DIM}")
    return text


def draw_levels(levels: tuple[LevelScores, ...], width: int, height: int) -> list[Text]:
    """One column a level, as high as its best score, with ● at the mean; below them the figures.

    Three cells a level while they fit, else one.
    """
    rows, room = max(height - 2, 1), width - _AXIS
    cells = 3 if len(levels) * 3 <= room else 1
    shown = levels[-(room // cells) :]
    texts = []
    for row in range(rows):
        label = {0: "1.0", rows - 1: "0.0"}.get(row, "")
        line = Text(f"{label:>3} │", style=DIM)
        for level in shown:
            filled = min(max(level.best, 0.0), 1.0) * rows - (rows - 1 - row)
            block = BLOCKS[round(min(max(filled, 0.0), 1.0) * 8)]
            mean_row = min(int((1 - min(max(level.mean, 0.0), 1.0)) * rows), rows - 1)
            column = (block * min(cells, 2)).ljust(cells)
            if row == mean_row:
                line.append("●", style=SCALE[-1])
                column = column[1:]
            line.append(column, style=SCALE[0])
        texts.append(line)
    axis = "".join(f"{level.depth:<{cells}}"[:cells] for level in shown) if cells > 1 else ""
    texts.append(Text(f"    └{axis or f'levels {shown[0].depth} to {shown[-1].depth}'}", style=DIM))
    last = shown[-1]
    summary = Text(f"level {last.depth}: best {last.best:.2f}", style="bold")
    return [*texts, summary.append(f"  ● mean {last.mean:.2f} of {last.scored}", style="not bold")]


def draw_chart(run: RunView, width: int, height: int) -> list[Text]:
    """A step line of the certainty from 0 to 1, tokens to the right; the last row is the axis."""
    points, columns, rows = _known_points(run), width - _AXIS, height - 1
    span = max(run.tokens, points[-1][0], 1)
    grid = [[" "] * columns for _ in range(rows)]

    def row_of(value: float) -> int:
        return round((1 - min(max(value, 0.0), 1.0)) * (rows - 1))

    for limit in find_thresholds(run.config).values():
        grid[row_of(limit)] = [THRESHOLD] * columns
    places = [min(int(t / span * (columns - 1)), columns - 1) for t, _ in points]
    for i, (_, value) in enumerate(points):
        end = places[i + 1] if i + 1 < len(points) else columns - 1
        for column in range(places[i], end + 1):
            grid[row_of(value)][column] = "━"
        if i:
            low, high = sorted((row_of(points[i - 1][1]), row_of(value)))
            for row in range(low, high + 1):
                grid[row][places[i]] = "┃"
        grid[row_of(value)][places[i]] = "●"
    if run.exit is not None:
        column = min(int(run.exit.tokens / span * (columns - 1)), columns - 1)
        grid[row_of(points[-1][1])][column] = EXIT
    texts = []
    for row, cells in enumerate(grid):
        label = {0: "1.0", rows - 1: "0.0", (rows - 1) // 2: "0.5"}.get(row, "")
        if row == (rows - 1) // 2 and (rows - 1) % 2:
            label = ""
        text = Text(f"{label:>3} │" if label else "    │", style=DIM)
        text.append("".join(cells), style=SCALE[-1])
        texts.append(text)
    axis = f"    └0{f'{span:,} tokens':>{columns - 1}}"
    return [*texts, Text(axis, style=DIM)]
