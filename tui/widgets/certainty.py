"""A run's progress: its certainty over tokens, or before that, the scores of its levels."""

import math

from rich.text import Text

from flashedge.client.event_line import ScoreTally
from flashedge.client.run_figures import (
    count_wanted_paths,
    describe_progress,
    describe_rest,
    find_thresholds,
    format_seconds,
    list_warnings,
    tally_levels,
)
from flashedge.client.run_view import RunView
from flashedge.client.words import describe_wait, format_count
from flashedge.literal import show_in_line
from flashedge.tui.colours import BLOCKS, DIM, SCALE, clamp, draw_meter
from flashedge.tui.state import Dashboard
from flashedge.tui.widgets.panel import Panel, dim_line, label_line, stack_lines, wrap_parts

_AXIS = 5
"""Cells of a chart's labels and axis."""

EXIT = "▼"
THRESHOLD = "┄"
BEST, MEAN = "◆", "●"
TITLE = "Progress"


class CertaintyPanel(Panel):
    def __init__(self) -> None:
        super().__init__(self.draw, id="certainty", title=TITLE)

    def draw(self, state: Dashboard, width: int, height: int) -> Text:
        row = state.chosen_row
        is_waiting = row is not None and row.position is not None  # it has no events yet
        run = state.shown or (RunView(id=row.id) if row is not None and is_waiting else None)
        if run is None:
            self.retitle(TITLE)
            return dim_line(TITLE if height < 2 else "", "no run")
        known = _list_points(run)
        if height < 5 or width < 24:  # no room for a chart
            return _draw_line(state, run, width)
        progress = [Text(part, style="bold") for part in _list_progress(state, run)]
        head = wrap_parts(progress, width, " · ")
        if state.prediction:
            drawn = [Text(format_count(run.all_tokens, "token"))] if run.all_tokens else []
            head += wrap_parts([*drawn, Text(f"a path: {state.prediction}")], width, " · ")
        levels = tally_levels(run)
        end = _summarize(run, width) if known else []
        room = height - len(head) - len(end)
        if len(known) > 1 or (known and not levels):
            self.retitle("Certainty over tokens")
            return stack_lines(*head, *draw_chart(run, width, room), *end)
        if levels:
            self.retitle("Scores by level")
            return stack_lines(*head, *draw_levels(levels, width, room), *end)
        self.retitle(TITLE)
        n = count_wanted_paths(run)
        done = [draw_meter(run.paths_done / n, width)] if n else []
        limits = [
            Text(f"{THRESHOLD}{THRESHOLD} {name}: exit at {value:.2f}", style=DIM)
            for name, value in find_thresholds(run.config).items()
        ]
        return stack_lines(*head, *done, *limits)


def _list_points(run: RunView) -> list[tuple[int, float]]:
    """(tokens, certainty) pairs."""
    return [(p.tokens, p.certainty) for p in run.certainty if p.certainty is not None]


def _list_progress(state: Dashboard, run: RunView) -> list[str]:
    """`level 7 · 0/16 paths · 12 s`, and the time left where that can be estimated."""
    elapsed_s, row = state.shown_elapsed_s, state.chosen_row
    if run.state == "waiting":
        known = "" if row is None else describe_wait(row.position, row.starts_in_s)
        return [f"waiting{known and ', '}{known}"]
    if run.over and not run.config:
        return list(list_warnings(run))
    parts = [describe_progress(run)]
    if elapsed_s is not None:
        parts.append(format_seconds(elapsed_s))
        parts += [rest] if (rest := describe_rest(run, elapsed_s)) else []
    if run.over:
        parts.append(run.state)
    return parts


def _draw_line(state: Dashboard, run: RunView, width: int) -> Text:
    """Draw the whole panel in one line, or in two for a run that waits. The levels' bars get the
    cells that the text leaves."""
    last = run.certainty[-1] if run.certainty else None
    if last is not None and last.certainty is not None:
        stop = [f"{EXIT} {run.exit.reason.replace('_', ' ')}"] if run.exit else []
        limits = [f"{THRESHOLD}{v:.2f}" for v in find_thresholds(run.config).values()]
        known = f" {last.certainty:.2f} of {last.answers} answers"
        parts = [*stop, *limits, f"at {last.tokens:,} tokens", *_list_progress(state, run)]
        line = label_line("Certainty", draw_meter(last.certainty, 10), known)
        for part in parts:
            if line.cell_len + len(part) + 3 <= width:
                line.append(f" · {part}", "not bold")
        return line
    levels = tally_levels(run)
    line = label_line("Progress", Text(" · ".join(_list_progress(state, run)), style="bold"))
    if run.state == "waiting":
        length = f"a path: {state.prediction}" if state.prediction else ""
        if line.cell_len + len(f" · {length}") > width:
            return stack_lines(line, label_line("", length))
        return line.append(f" · {length}" if length else "", "not bold")
    if levels:
        figures = f"{levels[-1].best:.2f} mean {levels[-1].mean:.2f}"
        room = min(12, width - line.cell_len - len(f"  best  {figures}"))
        bests = [level.best for level in levels[-room:]] if room > 0 else []
        blocks = "".join(BLOCKS[max(1, round(clamp(best) * 8))] for best in bests)
        line.append(f"  best {blocks} {figures}" if blocks else f"  best {figures}", "not bold")
    return line


def _summarize(run: RunView, width: int) -> list[Text]:
    """List the last certainty, and why the run stopped early or did not."""
    last, parts = run.certainty[-1], []
    if run.exit is not None:
        parts.append(Text(f"{EXIT} exit: {run.exit.reason.replace('_', ' ')}", style="bold"))
    value = "-" if last.certainty is None else f"{last.certainty:.2f}"
    parts.append(Text(f"certainty {value} of {last.answers} answers", style="bold"))
    for name, limit in find_thresholds(run.config).items():
        parts.append(Text(f"{THRESHOLD} {name} {limit:.2f}"))
    if run.exit is None and run.state == "finished":
        note = show_in_line(str((run.result or {}).get("early_exit_note") or ""))
        parts.append(Text(f"no early exit{note and ': '}{note}", style=DIM))
    return wrap_parts(parts, width)


def draw_levels(levels: tuple[ScoreTally, ...], width: int, height: int) -> list[Text]:
    """Draw a column for each level, with ◆ at its best score and ● at its mean, and then the last
    level's figures. The axis ends at 1. It begins at the tenth below the lowest mean, but not above
    0.8."""
    rows, room = max(height - 2, 1), width - _AXIS
    cells = min(max(room // len(levels), 1), 6)
    shown = levels[-(room // cells) :]
    floor = min(math.floor(min(level.mean for level in shown) * 10) / 10, 0.8)
    grid = [[(" ", "")] * (len(shown) * cells) for _ in range(rows)]

    def find_row(score: float) -> int:
        return round((1 - clamp((score - floor) / (1 - floor))) * (rows - 1))

    for place, level in enumerate(shown):
        at = place * cells
        top, low = find_row(level.best), find_row(level.mean)
        for row in range(top, low + 1):
            grid[row][at] = ("│", DIM)
        beside = 1 if cells > 1 and top == low else 0
        grid[low][at + beside] = (MEAN, SCALE[0])
        grid[top][at] = (BEST, SCALE[-1])
    labels = {0: "1.0", rows - 1: f"{floor:.1f}"}
    texts = [Text.assemble(_draw_label(labels.get(i)), *marks) for i, marks in enumerate(grid)]
    axis = "".join(f"{level.depth:<{cells}}"[:cells] for level in shown) if cells > 2 else ""
    texts.append(Text(f"    └{axis or f'levels {shown[0].depth} to {shown[-1].depth}'}", style=DIM))
    last = shown[-1]
    figures = (
        (f"level {last.depth}: ", "bold"),
        (f"{BEST} ", SCALE[-1]),
        f"best {last.best:.2f}  ",
        (f"{MEAN} ", SCALE[0]),
        f"mean {last.mean:.2f} of {last.scored}",
    )
    return [*texts, Text.assemble(*figures)]


def draw_chart(run: RunView, width: int, height: int) -> list[Text]:
    """Draw the certainty, from 0 to 1, as a step line over the run's tokens. It takes two lines at
    least, even if `height` is less."""
    points, columns, rows = _list_points(run), width - _AXIS, max(height - 1, 1)
    span = max(run.tokens, points[-1][0], 1)
    grid = [[" "] * columns for _ in range(rows)]

    def find_row(value: float) -> int:
        return round((1 - clamp(value)) * (rows - 1))

    for limit in find_thresholds(run.config).values():
        grid[find_row(limit)] = [THRESHOLD] * columns
    places = [min(int(t / span * (columns - 1)), columns - 1) for t, _ in points]
    for i, (_, value) in enumerate(points):
        end = places[i + 1] if i + 1 < len(points) else columns - 1
        for column in range(places[i], end + 1):
            grid[find_row(value)][column] = "━"
        if i:
            low, high = sorted((find_row(points[i - 1][1]), find_row(value)))
            for row in range(low, high + 1):
                grid[row][places[i]] = "┃"
        grid[find_row(value)][places[i]] = "●"
    if run.exit is not None:
        column = min(int(run.exit.tokens / span * (columns - 1)), columns - 1)
        grid[find_row(points[-1][1])][column] = EXIT
    labels = {0: "1.0", rows - 1: "0.0", (rows - 1) / 2: "0.5"}  # no row has 0.5 if `rows` is even
    lines = (("".join(cells), SCALE[-1]) for cells in grid)
    texts = [Text.assemble(_draw_label(labels.get(i)), line) for i, line in enumerate(lines)]
    return [*texts, Text(f"    └0{f'{span:,} tokens':>{columns - 1}}", style=DIM)]


def _draw_label(label: str | None) -> tuple[str, str]:
    return f"{label or '':>3} │", DIM
