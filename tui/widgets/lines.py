"""A list of lines with a cursor, which draws only the visible ones, and the list of events."""

from collections.abc import Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from flashedge.client.event_line import CATEGORIES, EventLine
from flashedge.client.run_view import RunView
from flashedge.console import show_text
from flashedge.literal import show_in_line
from flashedge.tui.colours import DIM
from flashedge.tui.state import Dashboard
from flashedge.tui.widgets.panel import LiteralTitles

CURSOR = "▸"


class LineList(LiteralTitles, ScrollView, can_focus=True):
    """Subclasses set `items`, one for each line, and draw a line in `draw_line`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home", "edge(0)", "First", show=False),
        Binding("end", "edge(1)", "Last", show=False),
    ]
    DEFAULT_CSS = "LineList { scrollbar-size: 1 1; overflow-x: hidden; }"

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.cursor = 0
        self.items: Sequence[Any] = ()

    @property
    def count(self) -> int:
        return len(self.items)

    @property
    def empty(self) -> str:
        """The text that is shown if there are no lines."""
        raise NotImplementedError

    @property
    def is_marked(self) -> bool:
        """Whether the cursor's line is marked with CURSOR."""
        return True

    def draw_line(self, index: int, width: int) -> Text:
        """Draw the line of `items[index]` in `width` cells."""
        raise NotImplementedError

    def update_lines(self) -> None:
        self.cursor = min(self.cursor, max(self.count - 1, 0))
        size = Size(self.scrollable_content_region.width, self.count)
        if size != self.virtual_size:
            self.virtual_size = size
        self.refresh()

    def render_line(self, y: int) -> Strip:
        index = y + self.scroll_offset.y
        width = self.scrollable_content_region.width
        if index >= self.count:
            text = Text(f"  {show_in_line(self.empty)}" if index == 0 else "", style=DIM)
        else:
            marked = index == self.cursor and self.is_marked
            text = Text(CURSOR if marked else " ", no_wrap=True)
            text.append_text(self.draw_line(index, width - 1))
        strip = Strip(show_text(text).render(self.app.console, "")).simplify()
        strip = strip.adjust_cell_length(width, None)
        if index == self.cursor and index < self.count and self.has_focus:
            return strip.apply_style(self.get_component_rich_style("lines--cursor"))
        return strip.apply_style(self.rich_style)

    COMPONENT_CLASSES: ClassVar[set[str]] = {"lines--cursor"}

    @property
    def is_in_sight(self) -> bool:
        above = self.scroll_offset.y
        return above <= self.cursor < above + self.scrollable_content_region.height

    def put_cursor(self, index: int, *, centre: bool = False) -> None:
        self.cursor = min(max(index, 0), max(self.count - 1, 0))
        region = Region(0, self.cursor, 1, 1)
        self.scroll_to_region(region, animate=False, force=True, center=centre)
        self.call_after_refresh(self._place_bar)
        self.refresh()

    def _place_bar(self) -> None:
        """Tell a scroll bar that has just appeared how far the lines are scrolled."""
        if self.show_vertical_scrollbar:
            self.vertical_scrollbar.position = self.scroll_y

    def _go(self, index: int) -> None:
        if self.count:
            self.put_cursor(index)

    def action_move(self, by: int) -> None:
        self._go(self.cursor + by)

    def action_page(self, by: int) -> None:
        self._go(self.cursor + by * max(self.scrollable_content_region.height - 1, 1))

    def action_edge(self, which: int) -> None:
        self._go(which * (self.count - 1))

    def on_click(self, event: events.Click) -> None:
        index = event.y - self.gutter.top + self.scroll_offset.y
        if 0 <= index < self.count:
            self._go(index)

    def on_resize(self) -> None:
        self.update_lines()
        self.put_cursor(self.cursor)


_LOUD = ("run", "errors")  # categories in bold
FILTERS = ("all", *CATEGORIES)


class EventLogPanel(LineList):
    """The shown run's events, the newest last. A cursor on the last line stays on the last line."""

    def __init__(self) -> None:
        super().__init__(id="log")
        self.category = FILTERS[0]
        self._view = RunView()
        self.items: tuple[EventLine, ...] = ()
        self._show_title()

    @property
    def empty(self) -> str:
        return "no events"

    def show(self, state: Dashboard) -> None:
        view = state.shown or RunView()
        if view.log is self._view.log and view.id == self._view.id:
            return
        at_end = self.cursor >= self.count - 1 or view.id != self._view.id
        self._view = view
        self._filter(to_end=at_end)

    def next_category(self) -> None:
        self.category = FILTERS[(FILTERS.index(self.category) + 1) % len(FILTERS)]
        self._filter(to_end=True)

    def _filter(self, *, to_end: bool) -> None:
        shown, log = self.category, self._view.log
        self.items = log if shown == FILTERS[0] else tuple(e for e in log if e.category == shown)
        self._show_title()
        self.update_lines()
        if to_end:
            self.put_cursor(self.count - 1)

    def _show_title(self) -> None:
        counts = self._view.event_counts
        shown = self.category if self.category != FILTERS[0] else f"all {sum(counts.values())}"
        summary = " · ".join(f"{counts[c]} {c}" for c in CATEGORIES if counts.get(c))
        filters = f"{summary} · v filters" if summary else "v filters"
        self.retitle(f"Events · {shown}", filters)

    def draw_line(self, index: int, width: int) -> Text:
        entry = self.items[index]
        text = Text(f"{entry.seq:>5} ", style=DIM)
        text.append(entry.text, style="bold" if entry.category in _LOUD else "")
        text.truncate(width, overflow="ellipsis")
        return text
