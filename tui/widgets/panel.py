"""A panel of text that is as high as what it has to say, and one line high in a small terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.containers import Vertical
from textual.widget import Widget

from flashedge.console import LiteralConsole, show_text
from flashedge.tui.state.dashboard import Dashboard
from flashedge.tui.state.scores import WARNING
from flashedge.tui.widgets.literal import LiteralTitles

COMPACT = "-narrow"
"""The screen's class in a terminal where panels are lines without frames."""

SHORT = "-short"
"""Its class in a terminal of so few lines that one counts."""


class Panel(LiteralTitles, Widget):
    """Subclasses draw a Dashboard into `width` cells and at most `height` lines, as many as the
    stylesheet's max-height leaves. Redrawn only when it differs."""

    title = ""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.border_title = self.title
        self._state = Dashboard()
        self._text = Text()

    def draw(self, state: Dashboard, width: int, height: int) -> Text:
        raise NotImplementedError

    def is_quiet(self, state: Dashboard) -> bool:
        """Whether it has nothing to say, so that it takes no line of a small terminal."""
        return False

    def show(self, state: Dashboard) -> None:
        self._state = state
        if not self.is_attached:
            return
        self.set_class(self.screen.has_class(COMPACT) and self.is_quiet(state), "quiet")
        if not self.display or not self.size.width:
            return
        limit = self.styles.max_height
        height = int(limit.value) - self.gutter.height if limit is not None else 1
        text = show_text(self.draw(state, self.size.width, max(height, 1)))
        if text != self._text or text.spans != self._text.spans:
            before, self._text = self._text, text
            grew = text.plain.count("\n") != before.plain.count("\n")
            self.refresh(layout=grew)

    def on_resize(self) -> None:
        self.show(self._state)

    def render(self) -> Text:
        return self._text


class PanelGroup(LiteralTitles, Vertical):
    """Panels in one frame."""


def stack_lines(*parts: Text) -> Text:
    """One below the other, none wrapped."""
    text = Text("\n", no_wrap=True, overflow="ellipsis").join(parts)
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def label_line(label: str, *parts: str | Text) -> Text:
    """`label` in eleven cells, then the parts."""
    text = Text(f"{label:<11}", style="bold", no_wrap=True, overflow="ellipsis")
    for part in parts:
        text.append_text(part if isinstance(part, Text) else Text(part, style="not bold"))
    return text


def wrap_parts(parts: Sequence[Text], width: int, gap: str = "  ") -> list[Text]:
    """The parts in as many lines as they need. One that is longer than a line is wrapped."""
    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + len(gap) + part.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], gap, part)
        else:
            lines += part.wrap(_CONSOLE, max(width, 1))
    return lines


def warn_lines(warnings: Sequence[str], width: int) -> list[Text]:
    """Each warning whole, in as many lines as it needs."""
    return [
        line
        for warning in warnings
        for line in Text(f"! {warning}", f"bold {WARNING}").wrap(_CONSOLE, max(width, 1))
    ]


_CONSOLE = LiteralConsole(width=80)


def format_bytes(count: float) -> str:
    """`1.5 GiB`."""
    for factor, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} B"
