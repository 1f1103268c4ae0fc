"""What all panels share: literal titles, and panels of text that are as high as what they say.

No text acts on the dashboard: it is never markup, and control characters are visible. Widgets show
foreign text by `show_literally` and `show_in_line`; `LiteralTitles` and `ActingFilter` hold for all
of them.
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
"""The screen's class in a terminal where panels are lines without frames."""

SHORT = "-short"
"""Its class in a terminal of few lines."""

_DROPPED: Mapping[int, str | None] = {
    **dict.fromkeys((*ACTING, ord("\t"), ord("\n"))),
    **dict.fromkeys(HALVES, "�"),
}
"""What takes the place of a character. A line keeps its width: only the halves have one."""

_CONSOLE = LiteralConsole(width=80)


class LiteralTitles:
    """A widget whose titles are text, where Textual reads markup.

    A mixin before the widget's own class: Textual inherits styles from the first base that is a
    widget.
    """

    _titles: tuple[str, str] = ("", "")

    def retitle(self, title: str, subtitle: str = "") -> None:
        """Set the titles if they changed: setting one draws the widget and all its parts again."""
        before, self._titles = self._titles, (title, subtitle)
        for name, old, new in zip(("title", "subtitle"), before, self._titles, strict=True):
            if old != new:
                setattr(self, f"border_{name}", new)

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


Draw = Callable[[Dashboard, int, int], Text]
"""Draws a Dashboard into `width` cells and at most `height` lines."""


class Panel(LiteralTitles, Widget):
    """Text that `draw` makes of the state. Redrawn only when it differs."""

    def __init__(
        self,
        draw: Draw,
        *,
        id: str,
        title: str = "",
        is_quiet: Callable[[Dashboard, bool], bool] = lambda state, is_small: False,
    ) -> None:
        """is_quiet: whether the panel takes no line, which may depend on whether the terminal is
        small."""
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
            grew = text.plain.count("\n") != before.plain.count("\n")
            self.refresh(layout=grew)

    def on_resize(self) -> None:
        self.show(self._state)

    def render(self) -> Text:
        return self._text


class PanelGroup(LiteralTitles, Vertical): ...


# ---------------------------------------------------------------- lines


def shorten(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def plain(text: Text | str) -> Text:
    """The text without the bold style of the line that it becomes a part of."""
    return Text.assemble(text, style="not bold")


def stack_lines(*parts: Text) -> Text:
    """One below the other, none wrapped."""
    text = Text("\n", no_wrap=True, overflow="ellipsis").join(parts)
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


LABEL_CELLS = 11


def label_line(label: str, *parts: str | Text) -> Text:
    """`label` in LABEL_CELLS cells, then the parts."""
    text = Text(f"{label:<{LABEL_CELLS}}", style="bold", no_wrap=True, overflow="ellipsis")
    for part in parts:
        text.append_text(part if isinstance(part, Text) else Text(part, style="not bold"))
    return text


def dim_line(label: str, text: str) -> Text:
    """The label, and in place of figures why there are none."""
    return label_line(label, Text(text, style=f"not bold {DIM}"))


def wrap_parts(parts: Sequence[Text], width: int, gap: str = "  ") -> list[Text]:
    """The parts in as many lines as they need. One that is longer than a line is wrapped."""
    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + len(gap) + part.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], gap, part)
        else:
            lines += part.wrap(_CONSOLE, max(width, 1))
    return lines
