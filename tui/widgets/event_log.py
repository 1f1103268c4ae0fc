"""The shown run's events, the newest last."""

from __future__ import annotations

from rich.text import Text

from flashedge.tui.log_line import LogLine
from flashedge.tui.state.run import RunState
from flashedge.tui.state.scores import DIM
from flashedge.tui.widgets.lines import LineList

_LOUD = {"RunStarted", "RunFinished", "RunFailed", "RunCancelled", "EngineRestarted"}


class EventLogPanel(LineList):
    """It stays at its end until the cursor is moved away from it."""

    empty = "no events yet"

    def __init__(self) -> None:
        super().__init__(id="log")
        self.border_title = "Events"
        self._log: tuple[LogLine, ...] = ()
        self._run: str | None = None

    @property
    def count(self) -> int:
        return len(self._log)

    def show(self, run: RunState | None) -> None:
        log = run.log if run is not None else ()
        name = run.id if run is not None else None
        if log is self._log:
            return
        at_end = self.cursor >= len(self._log) - 1 or name != self._run
        self._log, self._run = log, name
        self.update_lines()
        if at_end:
            self.put_cursor(len(log) - 1)

    def line(self, index: int, width: int) -> Text:
        entry = self._log[index]
        text = Text(f"{entry.seq:>5} ", style=DIM)
        text.append(entry.text, style="bold" if entry.kind in _LOUD else "")
        text.truncate(width, overflow="ellipsis")
        return text
