"""The line in which the user types a filter for the runs or for the tree."""

from __future__ import annotations

from typing import Protocol

from textual import on
from textual.widgets import Input

from flashedge.literal import show_in_line


class Filterable(Protocol):
    """A panel whose lines can be filtered by text."""

    filter: str

    def set_filter(self, wanted: str) -> None: ...
    def focus(self) -> object: ...


class FilterLine(Input):
    """Hidden until it is opened for a panel. The panel is filtered while the user types."""

    def __init__(self) -> None:
        hint = "filter: enter keeps it, esc clears it"
        super().__init__(id="filter", placeholder=hint, compact=True)
        self._panel: Filterable | None = None

    @property
    def panel(self) -> Filterable | None:
        """The panel it is open for."""
        return self._panel

    def open_for(self, panel: Filterable) -> None:
        self._panel = panel
        self.value = show_in_line(panel.filter)
        self.add_class("open")
        self.focus()

    def clear_filter(self, panel: Filterable) -> None:
        panel.set_filter("")
        self._close(panel)

    @on(Input.Changed)
    def _update(self, event: Input.Changed) -> None:
        if self._panel is not None:
            self._panel.set_filter(event.value)

    @on(Input.Submitted)
    def _keep(self) -> None:
        if self._panel is not None:
            self._close(self._panel)

    def _close(self, panel: Filterable) -> None:
        self._panel = None
        self.remove_class("open")
        panel.focus()
