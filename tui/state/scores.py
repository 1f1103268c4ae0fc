"""Scores as numbers, bars and colours. The number and the bar say everything the colour says."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

EIGHTHS = " ▏▎▍▌▋▊▉█"
BLOCKS = " ▁▂▃▄▅▆▇█"
SCALE = ("#5f86c9", "#7f93ba", "#a09f9f", "#c9b46a", "#ffd84d")
"""Blue to yellow with rising luminance (after cividis): readable with any colour vision, and in
shades of grey."""

DIM = "#8a8a8a"
WARNING = "#ffb454"
ON_LIGHT = {
    **dict(zip(SCALE, ("#5b7fc7", "#5f7199", "#666666", "#6f5a1c", "#5c4000"), strict=True)),
    DIM: "#6e6e6e",
    WARNING: "#9a4d00",
}
"""What stands for each of these colours on a light background, where high scores are dark."""


def score_colour(score: float | None) -> str:
    """The colour of a score in [0, 1]; grey without one."""
    if score is None:
        return DIM
    place = min(max(score, 0.0), 1.0) * len(SCALE)
    return SCALE[min(int(place), len(SCALE) - 1)]


def draw_bar(part: float, width: int) -> str:
    """`part` in [0, 1] as `width` cells, in eighths of a cell."""
    filled = min(max(part, 0.0), 1.0) * width
    return "".join(EIGHTHS[round(min(max(filled - i, 0.0), 1.0) * 8)] for i in range(width))


def draw_score(score: float | None, width: int = 3) -> Text:
    """`0.83 ██▍`; blanks of the same width without a score."""
    if score is None:
        return Text(" " * (5 + width))
    return Text(f"{score:.2f} {draw_bar(score, width)}", style=score_colour(score))


def draw_meter(part: float, width: int) -> Text:
    """A bar with a track, so that its end is visible without colour."""
    return Text(
        draw_bar(part, width).replace(" ", "░"), style=SCALE[-1] if part > 0.9 else SCALE[0]
    )


def draw_sparkline(values: Sequence[float], width: int, top: float | None = None) -> str:
    """The last `width` values as a line of blocks; `top` is the value of a full block."""
    last = values[-width:] if width else ()
    high = max([top or 0.0, *last]) or 1.0
    return "".join(BLOCKS[round(min(max(v, 0.0) / high, 1.0) * 8)] for v in last).rjust(width)
