"""The list of runs: status, problem, search, answer or progress, tokens, rate, elapsed time."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from operator import attrgetter
from os.path import commonprefix

from rich.text import Text
from textual.message import Message

from flashedge.client.run_figures import count_rollouts, format_seconds, is_mcts
from flashedge.client.run_view import RunView
from flashedge.client.words import describe_wait
from flashedge.tui.colours import DIM
from flashedge.tui.state import Dashboard
from flashedge.tui.summary import RunRow
from flashedge.tui.widgets.lines import LineList
from flashedge.tui.widgets.panel import shorten

STATUS = {
    "queued": ("◌", "queued"),
    "running": ("▶", "running"),
    "finished": ("✓", "done"),
    "failed": ("!", "failed"),
    "cancelled": ("–", "cancelled"),
    "interrupted": ("≈", "interrupted"),
}

LEAST_PROBLEM = 28
"""Least cells of a problem, for which columns are left off in the order of `_SPARE`. Chosen by
hand: much fewer hold too few words to tell problems apart, much more would leave no figures."""

_COLUMNS = ("search", "progress", "tokens", "rate", "elapsed")
_SPARE = ("rate", "search", "tokens")
"""Columns that can be left off, the least important first."""

_GAP = 2
_KEPT_BEGIN = 12
"""Most cells of a problem's beginning that stay when its middle is left out. Chosen by hand: two
words, so that LEAST_PROBLEM has room for the part that differs."""


class RunList(LineList):
    """The runs. The mark is at the run that the other panels show, unless a filter hides it."""

    @dataclass
    class Chosen(Message):
        run: str

    class EndReached(Message):
        """The cursor is on the last run."""

    def __init__(self) -> None:
        super().__init__(id="runs")
        self.retitle("Runs")
        self.filter = ""
        self._state = Dashboard()
        self.items: tuple[RunRow, ...] = ()
        self._shown: str | None = None
        self._cells: tuple[Mapping[str, str], ...] = ()
        self._sizes: dict[str, int] = {}
        self._word_width = self._wait_width = 0
        """Cells of the longest status and of the longest wait."""

        self._shared: Mapping[str, int] = {}
        """See `_measure_shared`."""

    @property
    def empty(self) -> str:
        if self.filter:
            return f"no run matches /{self.filter}: esc clears the filter"
        return "no runs yet: press s to submit a problem"

    @property
    def is_marked(self) -> bool:
        return self.cursor < len(self.items) and self.items[self.cursor].id == self._shown

    def show(self, state: Dashboard) -> None:
        shown = attrgetter("listed", "trees", "chosen", "wall_s", "daemon")
        if shown(state) != shown(self._state):
            self._state = state
            self.draw()

    def set_filter(self, wanted: str) -> None:
        """List the runs that match, and choose the first of them if the chosen one does not."""
        self.filter = wanted
        self.draw()
        if wanted and not self.is_marked:
            self._go(0)

    def _go(self, index: int) -> None:
        super()._go(index)
        if index >= len(self.items) - 1:
            self.post_message(self.EndReached())
        if self.items:
            self._shown = self.items[self.cursor].id
            self.post_message(self.Chosen(self._shown))

    def draw(self) -> None:
        wanted = self.filter.casefold()
        rows, was_empty = self._state.listed, not self.items
        searched = (f"{r.id} {r.status} {r.search} {r.problem} {r.answer or ''}" for r in rows)
        found = zip(rows, searched, strict=True)
        self.items = tuple(r for r, text in found if wanted in text.casefold())
        chosen = next((i for i, r in enumerate(self.items) if r.id == self._state.chosen), None)
        self._shown = self._state.chosen
        self._cells = tuple(map(self._list_cells, self.items))
        self._sizes = {
            name: max((len(cells.get(name, "")) for cells in self._cells), default=0)
            for name in _COLUMNS
        }
        self._wait_width = max((len(_describe_start(r)) for r in self.items), default=0)
        self._shared = _measure_shared(frozenset(r.problem for r in self.items))
        self._word_width = max((len(_name_status(r)) for r in self.items), default=0)
        self._show_title()
        self.update_lines()
        if chosen is not None and chosen != self.cursor:
            self.put_cursor(chosen)
        if wanted and was_empty and not self.is_marked:
            self._go(0)  # the first match, from an older page

    def _show_title(self) -> None:
        daemon, shown = self._state.daemon, len(self.items)
        kept = daemon.kept if daemon is not None else None
        title = f"Runs · {shown}" if shown or self.filter else "Runs"
        if kept is not None and kept > shown:
            title += f" of {kept}"
        self.retitle(title + (f" · /{self.filter}" if self.filter else ""))

    def draw_line(self, index: int, width: int) -> Text:
        run, cells = self.items[index], self._cells[index]
        mark = STATUS.get(run.status, ("?", ""))[0]
        line = Text(f"{mark} {_name_status(run):<{self._word_width}}  ", "bold" if run.live else "")
        room = width - line.cell_len
        search, shown = self._fit_columns(room)
        figures = Text()
        if run.position is not None:
            figures.append(_describe_start(run), DIM)
        else:
            for name, size in shown.items():
                text = cells.get(name, "")
                padded = f"{text:<{size}}" if name == "progress" else f"{text:>{size}}"
                style = DIM if name != "progress" else "" if run.live else "bold"
                figures.append(" " * _GAP if figures else "").append(padded, style)
        taken = max(_sum_cells(shown), self._wait_width)
        room -= taken + (search and search + _GAP) + _GAP
        line.append_text(self._draw_problem(run, max(room, 8)))
        line.append(f"{'':{_GAP}}{cells['search']:<{search}}" if search else "")
        line.append(" " * (_GAP + taken - figures.cell_len)).append_text(figures)
        line.truncate(width, overflow="ellipsis")
        return line

    def _draw_problem(self, run: RunRow, room: int) -> Text:
        """Draw the problem's beginning, or the part that differs if another one begins alike."""
        text, same = run.problem, self._shared.get(run.problem, 0)
        if len(text) > room and same > room - _KEPT_BEGIN:
            begin = text.rfind(" ", 0, same) + 1
            text = f"{text[:_KEPT_BEGIN].rsplit(' ', 1)[0]}… {text[begin:]}"
        shown = Text(text, "bold" if run.live else "")
        shown.truncate(room, overflow="ellipsis", pad=True)
        return shown

    def _fit_columns(self, width: int) -> tuple[int, dict[str, int]]:
        """Find (the width of the search, 0 if left off; the widths of the columns to its right)."""
        shown = {name: size for name, size in self._sizes.items() if size}
        search = shown.pop("search", 0)
        for name in _SPARE:
            taken = max(_sum_cells(shown), self._wait_width) + (search and search + _GAP) + _GAP
            if width - taken >= LEAST_PROBLEM:
                break
            search = 0 if name == "search" else search
            shown.pop(name, None)
        return search, shown

    def _list_cells(self, run: RunRow) -> Mapping[str, str]:
        """List the figures of a row, by column. A column that is empty in all rows has no cells."""
        search = {"search": f"{shorten(run.strategy, 12 - len(str(run.n)))}-{run.n}"}
        if run.position is not None:
            return search
        tree, elapsed_s = self._state.trees.get(run.id), self._state.find_elapsed_s(run)
        cells = {**search, "elapsed": "" if elapsed_s is None else format_seconds(elapsed_s)}
        if not run.live:
            answer = "" if run.answer is None else f"= {shorten(run.answer, 18)}"
            return {**cells, "progress": answer, "tokens": _format_count(run.tokens)}
        tokens = tree.all_tokens if tree is not None else run.tokens
        rate = self._state.compute_run_rate(run.id) if tree is not None else None
        per_s = f"{rate:,.0f}/s" if rate else ""
        paths = _draw_paths(run, tree)
        return {**cells, "progress": paths, "tokens": _format_count(tokens), "rate": per_s}


def _name_status(run: RunRow) -> str:
    if run.position is not None:
        return f"#{run.position + 1} in queue"
    return STATUS.get(run.status, ("?", run.status))[1]


def _describe_start(run: RunRow) -> str:
    """`in about 9 s` for a run that waits. Its place stands in its status."""
    wait = "" if run.position is None else describe_wait(None, run.starts_in_s)
    return wait.removeprefix("starts ")


def _sum_cells(columns: Mapping[str, int]) -> int:
    return sum(columns.values()) + _GAP * max(len(columns) - 1, 0)


@lru_cache(maxsize=1)
def _measure_shared(problems: frozenset[str]) -> Mapping[str, int]:
    """For each problem, count the characters of the longest beginning that another one has, too."""
    shared: dict[str, int] = {}
    for text, other in pairwise(sorted(problems)):
        same = len(commonprefix((text, other)))  # noqa: RUF071 (of characters)
        shared[text] = max(same, shared.get(text, 0))
        shared[other] = same
    return shared


def _draw_paths(run: RunRow, tree: RunView | None) -> str:
    """`L7 3/16`, level and paths, then the certainty `C.83` if there is one. For MCTS `r 5/16 P4`:
    5 of 16 rollouts have ended, 4 are in flight."""
    if tree is None:
        return ""
    if is_mcts(tree):
        paths = f"r {count_rollouts(tree)}/{run.n}"
    else:
        paths = f"L{tree.level} {tree.paths_done}/{run.n}"
    if len(tree.flights) > 1:
        return f"{paths} P{len(tree.flights)}"
    last = tree.certainty[-1].certainty if tree.certainty else None
    return paths if last is None else f"{paths} C{last:.2f}".replace("C0.", "C.")


def _format_count(tokens: int | None) -> str:
    if not tokens:
        return ""
    return f"{tokens / 1000:.1f}k" if tokens >= 10_000 else f"{tokens}"
