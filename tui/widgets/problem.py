"""What the shown run is about: its problem, and in a large terminal the path of its answer."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from flashedge.client.run_view import RunView
from flashedge.literal import show_in_line, show_literally
from flashedge.tui.state.scores import DIM
from flashedge.tui.widgets.literal import LiteralTitles
from flashedge.tui.widgets.panel import COMPACT, SHORT


class ProblemPanel(LiteralTitles, VerticalScroll, can_focus=True):
    """The whole problem; in a small terminal its beginning until it is focused.

    Arrow keys scroll it when it is focused.
    """

    def __init__(self) -> None:
        super().__init__(id="problem")
        self._words = Static(id="problem-text", markup=False)
        self._problem = ""
        self._drawn: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        yield self._words

    def show(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self.scroll_home(animate=False)
        self._draw()

    def _draw(self) -> None:
        if not self.is_attached:
            return
        compact = self.screen.has_class(COMPACT)
        is_line = compact and self.screen.has_class(SHORT) and not self.has_focus
        drawn = (self._problem, compact, is_line, self.size.width)
        if drawn == self._drawn:
            return
        self._drawn = drawn
        label = Text("Problem    ", style="bold") if compact else Text()
        if not self._problem:
            text = Text("no run is chosen", style=DIM)
        elif is_line:
            text = Text(show_in_line(self._problem))
        else:
            text = Text(show_literally(self._problem.strip()))
        whole = Text.assemble(label, text)
        if is_line:
            whole.truncate(self.size.width, overflow="ellipsis")
        self._words.update(whole)

    def on_focus(self) -> None:
        self._draw()

    def on_blur(self) -> None:
        self.scroll_home(animate=False)
        self._draw()

    def on_resize(self) -> None:
        self._draw()


class SolutionPanel(LiteralTitles, VerticalScroll, can_focus=True):
    """The text of the best path from its first step on. Only large terminals have room for it."""

    def __init__(self) -> None:
        super().__init__(id="solution")
        self._words = Static(id="solution-text", markup=False)
        self._drawn: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        yield self._words

    def show(self, run: RunView | None) -> None:
        if not self.display:
            return
        path = () if run is None else run.path(run.best)
        drawn = (run.id if run is not None else "", path, run.over if run is not None else False)
        if drawn == self._drawn:
            return
        self._drawn = drawn
        steps = "" if run is None else "".join(run.nodes[node].text for node in path)
        name = "The path of the answer" if run is not None and run.over else "The best path so far"
        text = Text(f"{name}\n", style=f"bold {DIM}") if steps.strip() else Text()
        self._words.update(text.append(show_literally(steps.strip()), "not bold default"))
