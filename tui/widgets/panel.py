"""A panel of text that adapts to its size: one line in a small terminal, more in a large one."""

from __future__ import annotations

from rich.text import Text
from textual.widget import Widget

from flashedge.console import show_text
from flashedge.tui.state.dashboard import Dashboard
from flashedge.tui.widgets.literal import LiteralTitles


class Panel(LiteralTitles, Widget):
    """Subclasses draw a Dashboard into width × height cells. Redrawn only when it differs."""

    title = ""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.border_title = self.title
        self._state = Dashboard()
        self._text = Text()

    def draw(self, state: Dashboard, width: int, height: int) -> Text:
        raise NotImplementedError

    def show(self, state: Dashboard) -> None:
        self._state = state
        if not self.display or not self.size:
            return
        text = show_text(self.draw(state, self.size.width, self.size.height))
        if text != self._text or text.spans != self._text.spans:
            self._text = text
            self.refresh()

    def on_resize(self) -> None:
        self.show(self._state)

    def render(self) -> Text:
        return self._text


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


def format_bytes(count: float) -> str:
    """`1.5 GiB`."""
    for factor, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} B"
