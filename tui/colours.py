"""The dashboard's themes and its colours of scores. Beside a colour stands a number or a bar."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import Theme

EIGHTHS = " ▏▎▍▌▋▊▉█"  # of a cell's width
BLOCKS = " ▁▂▃▄▅▆▇█"  # of its height
SCALE = ("#5f86c9", "#7f93ba", "#a09f9f", "#c9b46a", "#ffd84d")
"""Blue to yellow with rising luminance, readable with any colour vision (after cividis)."""

DIM = "#8a8a8a"
WARNING = "#ffb454"
ON_LIGHT = {
    **dict(zip(SCALE, ("#5b7fc7", "#5f7199", "#666666", "#6f5a1c", "#5c4000"), strict=True)),
    DIM: "#6e6e6e",
    WARNING: "#9a4d00",
}
"""What replaces these colours on a light background, where high scores are dark."""

OURS = Theme(
    name="flashedge",
    primary=SCALE[0],
    secondary="#7f93ba",
    accent=SCALE[-1],
    warning=WARNING,
    error="#ff7a70",
    success="#8fd18a",
    foreground="#dcdfe4",
    background="#0f1216",
    surface="#171b21",
    panel="#1f252d",
    dark=True,
)


def load_choice(file: Path | None) -> str:
    """Load the name of the theme that was chosen last, or ours if none was."""
    try:
        return (file.read_text(encoding="utf-8").strip() if file is not None else "") or OURS.name
    except (OSError, UnicodeDecodeError):
        return OURS.name


class LightFilter(LineFilter):
    """Replaces our colours on the whole screen while a light theme is chosen."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment if segment.style is None else segment._replace(style=_darken(segment.style))
            for segment in segments
        ]


@lru_cache(maxsize=1024)
def _darken(style: Style) -> Style:
    colours = (style.color, style.bgcolor)
    text, ground = (ON_LIGHT.get(c.name) if c is not None else None for c in colours)
    return style + Style(color=text, bgcolor=ground) if text or ground else style


def clamp(part: float) -> float:
    return min(max(part, 0.0), 1.0)


def choose_score_colour(score: float | None) -> str:
    return DIM if score is None else SCALE[min(int(clamp(score) * len(SCALE)), len(SCALE) - 1)]


def draw_bar(part: float, width: int) -> str:
    """Draw `part` in [0, 1] as a bar in `width` cells, to an eighth of a cell."""
    filled = clamp(part) * width
    return "".join(EIGHTHS[round(clamp(filled - i) * 8)] for i in range(width))


def draw_track(part: float, width: int) -> str:
    """Draw a bar with a track, so that its end is visible without colour."""
    return draw_bar(part, width).replace(" ", "░")


def draw_meter(part: float, width: int) -> Text:
    """Draw the used part of something as a bar, in yellow where less than a tenth is left."""
    return Text(draw_track(part, width), style=SCALE[-1] if part > 0.9 else SCALE[0])


def draw_score(score: float | None) -> Text:
    """`0.83 ██▍`; blanks of the same width without a score."""
    if score is None:
        return Text(" " * 8)
    return Text(f"{score:.2f} {draw_bar(score, 3)}", style=choose_score_colour(score))


def draw_sparkline(values: Sequence[float], width: int, top: float | None = None) -> str:
    """Draw the last `width` values as blocks. A full block is the largest of them and `top`."""
    last = values[-width:] if width else ()
    high = max([top or 0.0, *last]) or 1.0
    return "".join(BLOCKS[round(clamp(v / high) * 8)] for v in last).rjust(width)
