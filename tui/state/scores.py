"""Scores as numbers, bars and colours. The number and the bar say all that the colour says."""

from __future__ import annotations

from rich.text import Text

EIGHTHS = " ▏▎▍▌▋▊▉█"
# Blue to yellow with rising luminance (after cividis): told apart with any colour vision, and
# in shades of grey.
SCALE = ("#5f86c9", "#7f93ba", "#a09f9f", "#c9b46a", "#ffd84d")
DIM = "#8a8a8a"


def colour(score: float | None) -> str:
    """The colour of a score in [0, 1]; grey where there is none."""
    if score is None:
        return DIM
    place = min(max(score, 0.0), 1.0) * len(SCALE)
    return SCALE[min(int(place), len(SCALE) - 1)]


def bar(part: float, width: int) -> str:
    """`part` in [0, 1] as `width` cells, in eighths of a cell."""
    filled = min(max(part, 0.0), 1.0) * width
    return "".join(EIGHTHS[round(min(max(filled - i, 0.0), 1.0) * 8)] for i in range(width))


def score_text(score: float | None, width: int = 3) -> Text:
    """`0.83 ██▍`, as wide without a score."""
    if score is None:
        return Text(" " * (5 + width))
    return Text(f"{score:.2f} {bar(score, width)}", style=colour(score))


def meter(part: float, width: int) -> Text:
    """A bar with a track, so that its end is seen without colour."""
    return Text(bar(part, width).replace(" ", "░"), style=SCALE[-1] if part > 0.9 else SCALE[0])


def spark(values: list[float], width: int, top: float | None = None) -> str:
    """The last `width` values as a line of blocks; `top`: the value of a full block."""
    last = values[-width:]
    high = max([top or 0.0, *last]) or 1.0
    return "".join(" ▁▂▃▄▅▆▇█"[round(max(v, 0.0) / high * 8)] for v in last).rjust(width)
