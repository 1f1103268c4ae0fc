"""The dashboard's colours: Textual's themes and one of our own. The last choice is remembered."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import Theme

from flashedge.tui.state.scores import ON_LIGHT, SCALE, WARNING

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
    """The name of the theme that was chosen last; ours if none was."""
    try:
        return (file.read_text(encoding="utf-8").strip() if file is not None else "") or OURS.name
    except (OSError, UnicodeDecodeError):
        return OURS.name


def save_choice(file: Path, name: str) -> None:
    """Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{name}\n", encoding="utf-8")


class LightFilter(LineFilter):
    """Gives scores and dim texts the colours that are readable on a light background."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment if segment.style is None else segment._replace(style=_darken(segment.style))
            for segment in segments
        ]


@lru_cache(maxsize=1024)
def _darken(style: Style) -> Style:
    """The style with each of the dashboard's colours as it is on a light background."""
    colours = (style.color, style.bgcolor)
    text, ground = (ON_LIGHT.get(c.name) if c is not None else None for c in colours)
    return style + Style(color=text, bgcolor=ground) if text or ground else style
