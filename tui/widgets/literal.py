"""No text acts on the dashboard: it is never markup, and control characters are visible.

Widgets show what comes from outside by `show_literally` and `show_in_line`. What is here holds for
all of them, also where that was forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping

from rich.segment import Segment
from textual.color import Color
from textual.content import Content
from textual.filter import LineFilter

from flashedge.literal import ACTING, HALVES, show_in_line

_DROPPED: Mapping[int, str | None] = {
    **dict.fromkeys((*ACTING, ord("\t"), ord("\n"))),
    **dict.fromkeys(HALVES, "�"),
}
"""Keeps the width of a line: all but the halves have none."""


class LiteralTitles:
    """A widget whose titles are text, where Textual reads markup.

    It stands before the widget's own class, and is none itself: Textual inherits styles from the
    first base that is a widget.
    """

    def render_str(self, text_content: str | Content) -> Content:
        if isinstance(text_content, Content):
            return text_content
        return Content(show_in_line(text_content))


class ActingFilter(LineFilter):
    """Drops what acts from a line of the screen: the last step before the terminal."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment if segment.control else segment._replace(text=segment.text.translate(_DROPPED))
            for segment in segments
        ]
