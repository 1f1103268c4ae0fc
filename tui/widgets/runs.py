"""The list of runs: status, search, progress, rate, elapsed time, problem."""

from __future__ import annotations

from rich.text import Text
from textual.message import Message

from flashedge.client.run_figures import count_rollouts, duration_text, is_mcts
from flashedge.client.run_view import RunView
from flashedge.client.words import describe_wait
from flashedge.tui.state.dashboard import Dashboard
from flashedge.tui.state.scores import DIM
from flashedge.tui.state.summary import RunRow
from flashedge.tui.widgets.lines import LineList

STATUS = {
    "queued": ("◌", "queued"),
    "running": ("▶", "running"),
    "finished": ("✓", "done"),
    "failed": ("!", "failed"),
    "cancelled": ("–", "cancelled"),
    "interrupted": ("≈", "interrupted"),
}


class RunList(LineList):
    """It marks the run that the other panels show, and none while a filter hides that one."""

    class Chosen(Message):
        """The user moved to this run."""

        def __init__(self, run: str) -> None:
            self.run = run
            super().__init__()

    class EndReached(Message):
        """The user went to the last run, or past it."""

    def __init__(self) -> None:
        super().__init__(id="runs")
        self.border_title = "Runs"
        self.filter = ""
        self._state = Dashboard()
        self._rows: tuple[RunRow, ...] = ()
        self._shown: str | None = None

    @property
    def count(self) -> int:
        return len(self._rows)

    @property
    def empty(self) -> str:
        if self.filter:
            return f"no run matches /{self.filter}: esc clears the filter"
        return "no runs yet: press s to submit a problem"

    @property
    def is_marked(self) -> bool:
        return self.cursor < len(self._rows) and self._rows[self.cursor].id == self._shown

    def run_at(self, index: int) -> str:
        return self._rows[index].id

    def show(self, state: Dashboard) -> None:
        """Draw the listing; the cursor stays on the chosen run."""
        at = self._state
        if (state.listed, state.trees, state.chosen, state.wall_s, state.daemon) != (
            at.listed,
            at.trees,
            at.chosen,
            at.wall_s,
            at.daemon,
        ):
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
        if index >= len(self._rows) - 1:
            self.post_message(self.EndReached())
        if self._rows:
            self._shown = self._rows[self.cursor].id
            self.post_message(self.Chosen(self._shown))

    def draw(self) -> None:
        wanted = self.filter.casefold()
        rows, was_empty = self._state.listed, not self._rows
        self._rows = tuple(r for r in rows if not wanted or wanted in _searched(r).casefold())
        chosen = next((i for i, r in enumerate(self._rows) if r.id == self._state.chosen), None)
        self._shown = self._state.chosen
        self._show_title()
        self.update_lines()
        if chosen is not None and chosen != self.cursor:
            self.put_cursor(chosen)
        if wanted and was_empty and not self.is_marked:
            self._go(0)  # the first match, from an older page

    def _show_title(self) -> None:
        daemon, shown = self._state.daemon, len(self._rows)
        kept = daemon.kept if daemon is not None else None
        title = f"Runs · {shown}" if shown or self.filter else "Runs"
        if kept is not None and kept > shown:
            title += f" of {kept}"
        self.border_title = title + (f" · /{self.filter}" if self.filter else "")

    def line(self, index: int, width: int) -> Text:
        run = self._rows[index]
        mark, word = STATUS.get(run.status, ("?", run.status))
        if run.position is not None:
            word = f"#{run.position + 1} in queue"
        line = Text()
        line.append(f"{mark} {word:<11} {_shorten_search(run):<13} ", "bold" if run.live else "")
        line.append(self._format_progress(run))
        line.append(f" {run.problem}", DIM)
        line.truncate(width, overflow="ellipsis")
        return line

    def _format_progress(self, run: RunRow) -> str:
        """34 cells: the answer, or level, paths and certainty; tokens, their rate, seconds. Of a
        run that waits: when it starts."""
        if run.position is not None:
            return f"{describe_wait(None, run.starts_in_s):<34}"
        tree = self._state.trees.get(run.id)
        elapsed_s = self._state.elapsed_s(run)
        seconds = "" if elapsed_s is None else duration_text(elapsed_s)
        if not run.live:
            answer = "" if run.answer is None else f"= {run.answer}"
            return f"{_shorten(answer, 18):<18} {_count(run.tokens):>8} {seconds:>6}"
        tokens = tree.all_tokens if tree is not None else run.tokens
        rate = self._state.run_rate(run.id) if tree is not None else None
        per_s = "" if not rate else f"{rate:,.0f}/s"
        return f"{_draw_paths(run, tree):<13} {_count(tokens):>6} {per_s:>7} {seconds:>6}"


def _draw_paths(run: RunRow, tree: RunView | None) -> str:
    """`L7  3/16`, and the certainty `C.83` once there is one. Of a boosted run with several
    rollouts in flight their number: `r 5/16 P4`."""
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


def _shorten(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _shorten_search(run: RunRow) -> str:
    """`self_con…-16`: the name is cut, its n is not."""
    return f"{_shorten(run.strategy, 12 - len(str(run.n)))}-{run.n}"


def _searched(run: RunRow) -> str:
    return f"{run.id} {run.status} {run.search} {run.problem} {run.answer or ''}"


def _count(tokens: int | None) -> str:
    if tokens is None:
        return "-"
    return f"{tokens / 1000:.1f}k" if tokens >= 10_000 else f"{tokens}"
