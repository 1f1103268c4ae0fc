"""The dashboard. Workers post messages, the handlers here own the state, panels are shown it.

Events are folded as they come; the screen follows at most FRAMES_PER_S times a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, ClassVar

from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input

from flashedge.tui import export, feed, messages, style
from flashedge.tui.state import dashboard as state
from flashedge.tui.state.dashboard import Dashboard
from flashedge.tui.state.device import DeviceSample, read_device
from flashedge.tui.state.run import Numbered
from flashedge.tui.widgets.beam_tree import BeamTree
from flashedge.tui.widgets.certainty import CertaintyPanel
from flashedge.tui.widgets.device import DevicePanel
from flashedge.tui.widgets.dialogs import AskLine, Confirm, Help, Submit
from flashedge.tui.widgets.event_log import EventLogPanel
from flashedge.tui.widgets.key_bar import KEYS, KeyBar
from flashedge.tui.widgets.lines import LineList
from flashedge.tui.widgets.memory import MemoryPanel
from flashedge.tui.widgets.panel import Panel
from flashedge.tui.widgets.runs import RunList
from flashedge.tui.widgets.status_bar import StatusBar
from flashedge.tui.widgets.step import StepPanel
from flashedge.tui.widgets.throughput import RatePanel

FRAMES_PER_S = 12.0
SAMPLE_S = 0.5
_NAMES = {"?": "question_mark", "/": "slash"}


class DashboardApp(App[None]):
    """daemon: an async client; clock: monotonic seconds; device: reads a sample, may block."""

    CSS = style.CSS
    TITLE = "FlashEdge"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012
        (0, "-narrow"),
        (style.WIDE_COLUMNS, "-wide"),
        (style.HUGE_COLUMNS, "-huge"),
    ]
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(_NAMES.get(k, k), action, word) for k, word, action in KEYS),
        Binding("escape", "leave", "Leave", show=False),
    ]

    def __init__(
        self,
        daemon: feed.Daemon,
        *,
        device: Callable[[], DeviceSample] = read_device,
        clock: Callable[[], float] = time.monotonic,
        poll_s: float = feed.POLL_S,
    ) -> None:
        super().__init__()
        self.state = Dashboard()
        self._daemon = daemon
        self._device = device
        self._clock = clock
        self._poll_s = poll_s
        self._followed: set[str] = set()
        self._inbox: dict[str, list[Numbered]] = {}
        self._runs, self._tree, self._step = RunList(), BeamTree(), StepPanel()
        self._log_panel = EventLogPanel()
        self._panels: tuple[Panel, ...] = (
            StatusBar(daemon.base_url),
            CertaintyPanel(),
            RatePanel(),
            MemoryPanel(),
            DevicePanel(),
        )
        self._painted: Dashboard | None = None
        self._filtering: BeamTree | RunList | None = None
        self._ticked_at: float | None = None
        self._sampled_at = float("-inf")

    def compose(self) -> ComposeResult:
        bar, *side = self._panels
        yield bar
        with Vertical(id="body"):
            yield Vertical(self._runs, self._tree, self._step, id="main")
            yield Vertical(*side, self._log_panel, id="side")
        yield Input(id="filter", placeholder="filter; enter keeps it, esc clears it", compact=True)
        yield KeyBar()

    def on_mount(self) -> None:
        self._runs.focus()
        self._work(feed.watch_daemon(self._daemon, self.post_message, self._poll_s))
        self._work(feed.watch_device(self._device, self.post_message))
        self.set_interval(1 / FRAMES_PER_S, self.tick)

    def _work(self, work: Coroutine[Any, Any, None]) -> None:
        self.run_worker(work, exit_on_error=True)

    # ------------------------------------------------------------ what workers say

    @on(messages.EventsSeen)
    def _events_seen(self, message: messages.EventsSeen) -> None:
        if not self._inbox:
            self.call_later(self.fold_inbox)  # after what is in the queue by now: one fold for all
        self._inbox.setdefault(message.run, []).extend(message.items)

    def fold_inbox(self) -> None:
        """Fold what came since the last fold: one event on a quiet day, many in a rush."""
        inbox, self._inbox = self._inbox, {}
        for run, items in inbox.items():
            self.state = state.saw_events(self.state, run, items)

    @on(messages.FollowEnded)
    def _follow_ended(self, message: messages.FollowEnded) -> None:
        self.fold_inbox()
        self._followed.discard(message.run)
        if message.interrupted:
            self.state = state.saw_interruption(self.state, message.run)

    @on(messages.DaemonSeen)
    def _daemon_seen(self, message: messages.DaemonSeen) -> None:
        self.state = state.saw_daemon(self.state, message.look, message.runs)

    @on(messages.DaemonLost)
    def _daemon_lost(self, message: messages.DaemonLost) -> None:
        self.state = state.lost(self.state, message.error, message.retry_in_s)

    @on(messages.DeviceSeen)
    def _device_seen(self, message: messages.DeviceSeen) -> None:
        self.state = state.saw_device(self.state, message.sample)

    @on(messages.ReplayLoaded)
    def _replay_loaded(self, message: messages.ReplayLoaded) -> None:
        self.state = state.started_replay(self.state, message.run, message.items)

    @on(messages.Submitted)
    def _submitted(self, message: messages.Submitted) -> None:
        self.state = state.choose(state.ended_replay(self.state), message.run)
        waits = f", {message.position} before it" if message.position else ""
        self.notify(f"run {message.run} taken{waits}")

    @on(messages.Told)
    def _told(self, message: messages.Told) -> None:
        self.notify(message.text, severity=message.severity, markup=False)

    # ------------------------------------------------------------ time

    def tick(self) -> None:
        """A frame: move the replay, sample the rates, follow what is wanted, paint changes."""
        now = self._clock()
        elapsed_s = 0.0 if self._ticked_at is None else now - self._ticked_at
        self._ticked_at = now
        self.state = state.advanced_replay(self.state, elapsed_s)
        if now - self._sampled_at >= SAMPLE_S:
            self._sampled_at = now
            self.state = state.sampled(self.state, now)
        for run in state.to_follow(self.state):
            if run not in self._followed:
                self._followed.add(run)
                tree = self.state.trees.get(run)
                after = tree.seq if tree is not None else 0
                self._work(feed.follow_run(self._daemon, self.post_message, run, after))
        self.paint()

    def paint(self) -> None:
        """Show the panels the state, if they have not seen it."""
        shown = self.state.shown
        if self.state is not self._painted:
            self._painted = self.state
            self._runs.show(self.state)
            self._tree.show(shown)
            self._log_panel.show(shown)
            for panel in self._panels:
                panel.show(self.state)
        self._tree.follow()
        self._step.show(shown, self._tree.selected)

    # ------------------------------------------------------------ what the user does

    @on(LineList.Moved, "#runs")
    def _run_chosen(self, message: LineList.Moved) -> None:
        run = self._runs.run_at(message.index)
        if run != self.state.chosen:
            self.state = state.choose(state.ended_replay(self.state), run)

    def action_help(self) -> None:
        self.push_screen(Help())

    def action_follow(self) -> None:
        self._tree.toggle_follow()

    def action_dropped(self) -> None:
        self._tree.toggle_dropped()

    def action_log(self) -> None:
        self.screen.toggle_class("show-log")

    def action_leave(self) -> None:
        """Close the filter; else leave the replay."""
        if self.query_one("#filter").has_class("open") or self._filtered().filter:
            self._close_filter(clear=True)
        elif self.state.replay is not None:
            self.state = state.ended_replay(self.state)

    def action_submit(self) -> None:
        def submit(body: dict[str, Any] | None) -> None:
            if body is not None:
                self._work(feed.submit_problem(self._daemon, self.post_message, body))

        self.push_screen(Submit(), submit)

    def action_cancel(self) -> None:
        run = self.state.chosen_summary
        if run is None or not run.live:
            self.notify("the chosen run is over" if run else "no run is chosen")
            return

        def cancel(sure: bool | None) -> None:
            if sure:
                self._work(feed.cancel_run(self._daemon, self.post_message, run.id))

        self.push_screen(Confirm(f"Cancel run {run.id}?"), cancel)

    def action_replay(self) -> None:
        if self.state.replay is not None and not self.state.replay.over:
            self.state = state.faster_replay(self.state)
            return
        run = self.state.chosen_summary
        if run is None or run.live:
            self.notify("choose a run that is over to replay it")
            return
        self._work(feed.load_replay(self._daemon, self.post_message, run.id))

    def action_export(self) -> None:
        run = self.state.shown
        if run is None:
            self.notify("there is no tree to export")
            return

        def write(path: str | None) -> None:
            if path is None:
                return
            target = Path(path).expanduser()
            text = export.to_json(run) if target.suffix == ".json" else export.to_svg(run)
            try:
                target.write_text(text, encoding="utf-8")
            except OSError as error:
                self.notify(f"can't write {target}: {error.strerror}", severity="error")
                return
            self.notify(f"wrote {target}", markup=False)

        hint = "A name that ends with .json writes JSON, any other SVG."
        self.push_screen(AskLine("Export the tree", f"{run.id}.svg", hint), write)

    # ------------------------------------------------------------ the filter

    def _filtered(self) -> RunList | BeamTree:
        """The panel that `/` filters: the tree when it is focused, else the runs."""
        tree = self._tree
        return tree if tree in (self.focused, self._filtering) else self._runs

    def action_filter(self) -> None:
        self._filtering = self._filtered()
        line = self.query_one("#filter", Input)
        line.value = self._filtered().filter
        line.add_class("open")
        line.focus()

    @on(Input.Changed, "#filter")
    def _filter_typed(self, event: Input.Changed) -> None:
        if self.query_one("#filter").has_class("open"):
            self._filtered().set_filter(event.value)

    @on(Input.Submitted, "#filter")
    def _filter_kept(self) -> None:
        self._close_filter(clear=False)

    def _close_filter(self, *, clear: bool) -> None:
        panel = self._filtered()
        self.query_one("#filter").remove_class("open")
        if clear:
            panel.set_filter("")
        self._filtering = None
        panel.focus()
