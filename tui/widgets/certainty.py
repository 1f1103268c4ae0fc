"""Certainty over the tokens spent, with the thresholds and the moment of exit."""

from __future__ import annotations

from rich.text import Text

from flashedge.tui.state.dashboard import Dashboard
from flashedge.tui.state.run import CertaintyPoint, RunState
from flashedge.tui.state.scores import DIM, SCALE, meter
from flashedge.tui.widgets.panel import Panel, labelled, lines

_AXIS = 5
EXIT = "▼"
THRESHOLD = "┄"


class CertaintyPanel(Panel):
    title = "Certainty over tokens"

    def __init__(self) -> None:
        super().__init__(id="certainty")

    def draw(self, state: Dashboard, width: int, height: int) -> Text:
        run = state.shown
        if height < 5 or width < 24:
            return _line(run, width)
        if run is None or not known(run):
            return lines(Text("no answers to compare yet", style=DIM), *_limits(run))
        return lines(*chart(run, width, height - 1), _summary(run))


def known(run: RunState) -> list[tuple[int, float]]:
    """(tokens, certainty) where there was one."""
    return [(p.tokens, p.certainty) for p in run.certainty if p.certainty is not None]


def _last(run: RunState) -> CertaintyPoint | None:
    return run.certainty[-1] if run.certainty else None


def _line(run: RunState | None, width: int) -> Text:
    last = _last(run) if run is not None else None
    if run is None or last is None or last.certainty is None:
        return labelled("Certainty", Text("no answers to compare yet", style=f"not bold {DIM}"))
    said = f" {last.certainty:.2f} of {last.answers} answers at {last.tokens:,} tokens"
    limits = "".join(f" {THRESHOLD}{v:.2f}" for v in run.thresholds.values())
    left = f" {EXIT} {run.exit.reason}" if run.exit else ""
    return labelled("Certainty", meter(last.certainty, 10), said + limits + left)


def _limits(run: RunState | None) -> list[Text]:
    if run is None:
        return []
    return [
        Text(f"{THRESHOLD}{THRESHOLD} {name}: exit at {value:.2f}", style=DIM)
        for name, value in run.thresholds.items()
    ]


def _summary(run: RunState) -> Text:
    last = _last(run)
    assert last is not None, "a chart has points"
    value = "-" if last.certainty is None else f"{last.certainty:.2f}"
    text = Text(f"{value} of {last.answers} answers", style="bold")
    for name, limit in run.thresholds.items():
        text.append(f"  {THRESHOLD} {name} {limit:.2f}", style="not bold")
    if run.exit is not None:
        text.append(f"  {EXIT} exit: {run.exit.reason.replace('_', ' ')}", style="bold")
    elif run.state == "finished":
        text.append("  ran to its end", style=f"not bold {DIM}")
    return text


def chart(run: RunState, width: int, height: int) -> list[Text]:
    """A step line from 0 to 1 upwards, tokens to the right; the last row is the axis."""
    points, columns, rows = known(run), width - _AXIS, height - 1
    span = max(run.tokens, points[-1][0], 1)
    grid = [[" "] * columns for _ in range(rows)]

    def row_of(value: float) -> int:
        return round((1 - min(max(value, 0.0), 1.0)) * (rows - 1))

    for limit in run.thresholds.values():
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
