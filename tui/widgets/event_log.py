"""The shown run's events, the newest last, with a filter and a count of each category."""

from __future__ import annotations

from rich.text import Text

from flashedge.client.event_line import CATEGORIES, EventLine, sum_up_scores
from flashedge.client.run_view import RunView
from flashedge.tui.colours import DIM
from flashedge.tui.widgets.lines import LineList

_LOUD = {"RunStarted", "RunFinished", "RunFailed", "RunCancelled", "EngineRestarted"}
FILTERS = ("all", *CATEGORIES)


class EventLogPanel(LineList):
    """It stays at its end until the cursor is moved away from it."""

    def __init__(self) -> None:
        super().__init__(id="log")
        self.category = FILTERS[0]
        self._view = RunView()
        self.items: tuple[EventLine, ...] = ()
        self._show_title()

    @property
    def empty(self) -> str:
        return "no events"

    def show(self, run: RunView | None) -> None:
        view = run if run is not None else RunView()
        if view.log is self._view.log and view.id == self._view.id:
            return
        at_end = self.cursor >= self.count - 1 or view.id != self._view.id
        self._view = view
        self._filter(to_end=at_end)

    def next_category(self) -> None:
        self.category = FILTERS[(FILTERS.index(self.category) + 1) % len(FILTERS)]
        self._filter(to_end=True)

    def _filter(self, *, to_end: bool) -> None:
        log = sum_up_scores(self._view.log)
        if self.category != FILTERS[0]:
            log = tuple(line for line in log if line.category == self.category)
        self.items = log
        self._show_title()
        self.update_lines()
        if to_end:
            self.put_cursor(len(log) - 1)

    def _show_title(self) -> None:
        counts = self._view.event_counts
        shown = self.category if self.category != FILTERS[0] else f"all {sum(counts.values())}"
        summary = " · ".join(f"{counts[c]} {c}" for c in CATEGORIES if counts.get(c))
        filters = f"{summary} · v filters" if summary else "v filters"
        self.retitle(f"Events · {shown}", filters)

    def line(self, index: int, width: int) -> Text:
        entry = self.items[index]
        text = Text(f"{entry.seq:>5} ", style=DIM)
        text.append(entry.text, style="bold" if entry.kind in _LOUD else "")
        text.truncate(width, overflow="ellipsis")
        return text
