"""What all panels share: literal titles, and panels that are as high as their text.

No text acts on the dashboard: it is never markup, and its control characters are visible. Widgets
show foreign text by `show_literally` and `show_in_line`, and titles as LiteralTitles. ActingFilter
drops what a widget forgot.
"""

from collections.abc import Callable, Mapping, Sequence

from rich.segment import Segment
from rich.text import Text
from textual.color import Color
from textual.containers import Vertical
from textual.content import Content
from textual.filter import LineFilter
from textual.widget import Widget

from flashedge.console import LiteralConsole, show_text
from flashedge.literal import ACTING, HALVES, show_in_line
from flashedge.tui.colours import DIM
from flashedge.tui.state import Dashboard

COMPACT = "-narrow"
"""The CSS class of the screen in a narrow terminal, where panels are lines without frames."""

SHORT = "-short"
"""The CSS class of the screen in a terminal of few lines."""

_DROPPED: Mapping[int, str | None] = {
    **dict.fromkeys((*ACTING, ord("\t"), ord("\n"))),
    **dict.fromkeys(HALVES, "�"),
}
"""None drops a character. Lone surrogates are replaced, since they count as a cell of the line."""

_CONSOLE = LiteralConsole(width=80)


class LiteralTitles:
    """A mixin that shows a widget's titles as text; Textual would read them as markup. It stands
    before the widget's class, from which Textual then inherits the styles."""

    _titles: tuple[str, str] = ("", "")

    def retitle(self, title: str, subtitle: str = "") -> None:
        """Set the titles that changed: setting one redraws the widget and all its parts."""
        before, self._titles = self._titles, (title, subtitle)
        for name, old, new in zip(("title", "subtitle"), before, self._titles, strict=True):
            if old != new:
                setattr(self, f"border_{name}", new)

    def render_str(self, text_content: str | Content) -> Content:
        if isinstance(text_content, Content):
            return text_content
        return Content(show_in_line(text_content))


class ActingFilter(LineFilter):
    """Drops control characters from the screen's lines, in the last step before the terminal."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment if segment.control else segment._replace(text=segment.text.translate(_DROPPED))
            for segment in segments
        ]


Draw = Callable[[Dashboard, int, int], Text]
"""Draws a Dashboard into `width` cells and at most `height` lines."""


class Panel(LiteralTitles, Widget):
    """A panel with the text that `draw` makes of the state, refreshed only if the text changes."""

    def __init__(
        self,
        draw: Draw,
        *,
        id: str,
        title: str = "",
        is_quiet: Callable[[Dashboard, bool], bool] = lambda state, is_small: False,
    ) -> None:
        """is_quiet: whether to hide the panel, by the state and whether the terminal is narrow."""
        super().__init__(id=id)
        self.retitle(title)
        self._draw_text, self._is_quiet = draw, is_quiet
        self._state = Dashboard()
        self._text = Text()

    def show(self, state: Dashboard) -> None:
        self._state = state
        if not self.is_attached:
            return
        self.set_class(self._is_quiet(state, self.screen.has_class(COMPACT)), "quiet")
        if not self.display or not self.size.width:
            return
        limit = self.styles.max_height
        height = int(limit.value) - self.gutter.height if limit is not None else 1
        text = show_text(self._draw_text(state, self.size.width, max(height, 1)))
        if text != self._text or text.spans != self._text.spans:
            before, self._text = self._text, text
            is_resized = text.plain.count("\n") != before.plain.count("\n")
            self.refresh(layout=is_resized)

    def on_resize(self) -> None:
        self.show(self._state)

    def render(self) -> Text:
        return self._text


class PanelGroup(LiteralTitles, Vertical): ...


def shorten(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def thin(text: Text | str) -> Text:
    """Keep the text from taking on the bold style of a line that it becomes a part of."""
    return Text.assemble(text, style="not bold")


def stack_lines(*parts: Text) -> Text:
    """Join lines of text, each below the one before. None is wrapped."""
    text = Text("\n", no_wrap=True, overflow="ellipsis").join(parts)
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


LABEL_CELLS = 11  # as many as the longest label, "Best so far"


def label_line(label: str, *parts: str | Text) -> Text:
    """Make a line of the label, in LABEL_CELLS cells, and the parts."""
    text = Text(f"{label:<{LABEL_CELLS}}", style="bold", no_wrap=True, overflow="ellipsis")
    for part in parts:
        text.append_text(part if isinstance(part, Text) else Text(part, style="not bold"))
    return text


def dim_line(label: str, text: str) -> Text:
    """Make a line of the label and, in place of figures, why there are none."""
    return label_line(label, Text(text, style=f"not bold {DIM}"))


def wrap_parts(parts: Sequence[Text], width: int, gap: str = "  ") -> list[Text]:
    """Lay out the parts in as many lines as they need. Wrap a part that is longer than a line."""
    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + len(gap) + part.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], gap, part)
        else:
            lines += part.wrap(_CONSOLE, max(width, 1))
    return lines
