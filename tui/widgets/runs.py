"""The list of runs: queue position, search, progress, certainty, problem."""

from __future__ import annotations

from rich.text import Text

from flashedge.tui.state.dashboard import Dashboard
from flashedge.tui.state.run import RunState
from flashedge.tui.state.scores import DIM, bar
from flashedge.tui.state.summary import RunSummary
from flashedge.tui.widgets.lines import LineList

STATUS = {
    "queued": ("◌", "queued"),
    "running": ("▶", "running"),
    "finished": ("✓", "done"),
    "failed": ("!", "failed"),
    "cancelled": ("–", "cancelled"),
    "interrupted": ("≈", "cut off"),
}


class RunList(LineList):
    empty = "no runs yet: s submits a problem"

    def __init__(self) -> None:
        super().__init__(id="runs")
        self.border_title = "Runs"
        self.filter = ""
        self._state = Dashboard()
        self._rows: tuple[RunSummary, ...] = ()

    @property
    def count(self) -> int:
        return len(self._rows)

    def run_at(self, index: int) -> str:
        return self._rows[index].id

    def show(self, state: Dashboard) -> None:
        """Draw the listing; the cursor stays on the chosen run."""
        at = self._state
        if (state.runs, state.trees, state.chosen) != (at.runs, at.trees, at.chosen):
            self._state = state
            self.draw()

    def set_filter(self, wanted: str) -> None:
        self.filter = wanted
        self.draw()

    def draw(self) -> None:
        wanted = self.filter.casefold()
        self._rows = tuple(r for r in self._state.runs if wanted in _searched(r).casefold())
        chosen = next((i for i, r in enumerate(self._rows) if r.id == self._state.chosen), None)
        self.border_title = f"Runs · {len(self._rows)}" if self._rows else "Runs"
        self.border_title += f" · /{self.filter}" if self.filter else ""
        self.update_lines()
        if chosen is not None and chosen != self.cursor:
            self.put_cursor(chosen)

    def line(self, index: int, width: int) -> Text:
        run = self._rows[index]
        mark, word = STATUS.get(run.status, ("?", run.status))
        if run.position is not None:
            word = f"#{run.position + 1} in line"
        line = Text()
        line.append(f"{mark} {word:<10} {_short(run.search):<13}", "bold" if run.live else "")
        line.append(_progress(run, self._state.trees.get(run.id)))
        line.append(f"  {run.problem}", DIM)
        line.truncate(width, overflow="ellipsis")
        return line


def _short(search: str) -> str:
    return search if len(search) <= 13 else f"{search[:12]}…"


def _searched(run: RunSummary) -> str:
    return f"{run.id} {run.status} {run.search} {run.problem} {run.answer or ''}"


def _progress(run: RunSummary, tree: RunState | None) -> str:
    """Paths done of n with a bar and the certainty, or the answer; then tokens: 30 cells."""
    tokens = tree.all_tokens if tree is not None and run.live else run.tokens
    if not run.live:
        said = "" if run.answer is None else f"answer {run.answer}"
        said = said if len(said) <= 19 else f"{said[:18]}…"
    else:
        done = tree.complete if tree is not None else 0
        last = tree.certainty[-1].certainty if tree is not None and tree.certainty else None
        if run.search.startswith("mcts"):  # its n are rollouts, which no event counts
            said = f"{done:>3} paths   "
        else:
            said = f"{done:>3}/{run.n:<3} {bar(done / run.n, 4).replace(' ', '░')}"
        said += " C  -  " if last is None else f" C {last:.2f}"
    return f" {said:<19} {_count(tokens):>6} tok"


def _count(tokens: int | None) -> str:
    if tokens is None:
        return "-"
    return f"{tokens / 1000:.1f}k" if tokens >= 10_000 else f"{tokens}"
