"""The dashboard. Workers post messages, the handlers here own the state, panels draw it.

Events are folded when they arrive; the screen follows at most FRAMES_PER_S times a second.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from textual import events, on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.filter import LineFilter

from flashedge.client.run_fold import Numbered
from flashedge.client.words import describe_wait
from flashedge.console import LiteralConsole
from flashedge.literal import show_in_line, show_literally
from flashedge.tui import export, feed, messages, style
from flashedge.tui.state import dashboard as state
from flashedge.tui.state.dashboard import Dashboard
from flashedge.tui.state.device import read_devices
from flashedge.tui.widgets.beam_tree import BeamTree
from flashedge.tui.widgets.certainty import CertaintyPanel
from flashedge.tui.widgets.device import DevicePanel
from flashedge.tui.widgets.dialogs import DEFAULT_SEARCH, AskLine, Confirm, Help, Submit
from flashedge.tui.widgets.event_log import EventLogPanel
from flashedge.tui.widgets.filter_line import FilterLine
from flashedge.tui.widgets.key_bar import KEYS, KeyBar
from flashedge.tui.widgets.literal import ActingFilter
from flashedge.tui.widgets.memory import MemoryPanel
from flashedge.tui.widgets.panel import Panel
from flashedge.tui.widgets.runs import RunList
from flashedge.tui.widgets.status_bar import StatusBar
from flashedge.tui.widgets.step import StepPanel
from flashedge.tui.widgets.throughput import RatePanel
from flashedge.tui.widgets.votes import VotesPanel

FRAMES_PER_S = 12.0
SAMPLE_S = 0.5
_NAMES = {"?": "question_mark", "/": "slash"}


class DashboardApp(App[None]):
    """The whole screen.

    daemon: an async client; devices: reads samples of cards, may block; clock: monotonic seconds;
    wall: Unix seconds.
    """

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
        devices: feed.ReadDevices = read_devices,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        poll_s: float = feed.POLL_S,
    ) -> None:
        super().__init__()
        self.error_console = LiteralConsole(stderr=True)
        self.state = Dashboard()
        self._daemon = daemon
        self._devices = devices
        self._clock = clock
        self._wall = wall
        self._poll_s = poll_s
        self._followed: set[str] = set()
        self._inbox: dict[str, list[Numbered]] = {}
        self._runs, self._tree, self._step = RunList(), BeamTree(), StepPanel()
        self._log_panel = EventLogPanel()
        self._panels: tuple[Panel, ...] = (
            StatusBar(daemon.base_url),
            CertaintyPanel(),
            VotesPanel(),
            RatePanel(),
            MemoryPanel(),
            DevicePanel(),
        )
        self._is_loading_older = False
        self._painted: Dashboard | None = None
        self._filter = FilterLine()
        self._ticked_at: float | None = None
        self._sampled_at = float("-inf")

    def compose(self) -> ComposeResult:
        bar, *side = self._panels
        yield bar
        with Vertical(id="body"):
            yield Vertical(self._runs, self._tree, self._step, id="main")
            yield Vertical(*side, self._log_panel, id="side")
        yield self._filter
        yield KeyBar()

    # ------------------------------------------------------------ text from outside

    def get_line_filters(self) -> Sequence[LineFilter]:
        return (*super().get_line_filters(), ActingFilter())

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: messages.Severity = "information",
        timeout: float | None = None,
        markup: bool = False,
    ) -> None:
        """Show a message. It is never markup, whatever `markup` says."""
        shown = show_literally(message)
        heading = show_in_line(title)
        super().notify(shown, title=heading, severity=severity, timeout=timeout, markup=False)

    async def on_event(self, event: events.Event) -> None:
        """Make control characters visible in what the user pastes, in any field."""
        if isinstance(event, events.Paste):
            event.text = show_literally(re.sub("\r\n?", "\n", event.text))
        await super().on_event(event)

    # ------------------------------------------------------------ start

    def on_mount(self) -> None:
        self._runs.focus()
        self._work(feed.watch_daemon(self._daemon, self.post_message, self._poll_s))
        self._work(feed.watch_devices(self._devices, self._list_cards, self.post_message))
        self.set_interval(1 / FRAMES_PER_S, self.tick)

    def _list_cards(self) -> tuple[str, ...]:
        return self.state.daemon.cards if self.state.daemon else ()

    def _work(self, work: Coroutine[Any, Any, None]) -> None:
        self.run_worker(work, exit_on_error=True)

    # ------------------------------------------------------------ messages of workers

    @on(messages.EventsReceived)
    def _receive_events(self, message: messages.EventsReceived) -> None:
        if not self._inbox:
            self.call_later(self.fold_inbox)  # behind the queued messages: one fold for all
        self._inbox.setdefault(message.run, []).extend(message.items)

    def fold_inbox(self) -> None:
        """Fold what arrived since the last fold: one event on a quiet day, many in a rush."""
        inbox, self._inbox = self._inbox, {}
        for run, items in inbox.items():
            self.state = state.fold_events(self.state, run, items)

    @on(messages.FollowEnded)
    def _end_follow(self, message: messages.FollowEnded) -> None:
        self.fold_inbox()
        self._followed.discard(message.run)
        if message.interrupted:
            self.state = state.interrupt_run(self.state, message.run)

    @on(messages.StatusReceived)
    def _receive_status(self, message: messages.StatusReceived) -> None:
        follow = self._is_following
        self.state = state.update_daemon(self.state, message.daemon, message.runs, follow=follow)
        if self._runs.filter:
            self._load_older()

    @on(messages.OlderReceived)
    def _receive_older(self, message: messages.OlderReceived) -> None:
        self._is_loading_older = False
        self.state = state.add_older(self.state, message.runs)
        if message.runs and self._runs.filter:
            self._load_older()

    @on(RunList.EndReached)
    def _load_older(self) -> None:
        """Fetch a page of older runs: at the list's end, and page by page for a filter."""
        oldest = self.state.oldest
        if self.state.has_older and oldest is not None and not self._is_loading_older:
            self._is_loading_older = True
            self._work(feed.load_older(self._daemon, self.post_message, oldest.id))

    @on(messages.DaemonLost)
    def _lose_daemon(self, message: messages.DaemonLost) -> None:
        self.state = state.lose_daemon(self.state, message.error, message.retry_in_s)

    @on(messages.DeviceSampled)
    def _receive_sample(self, message: messages.DeviceSampled) -> None:
        self.state = replace(self.state, devices=message.samples)

    @on(messages.ReplayLoaded)
    def _start_replay(self, message: messages.ReplayLoaded) -> None:
        self.state = state.start_replay(self.state, message.run, message.items)

    @on(messages.RunAccepted)
    def _show_accepted(self, message: messages.RunAccepted) -> None:
        ended = state.end_replay(self.state)
        self.state = state.choose(ended, message.run, follow_newest=True)
        known = describe_wait(message.position, message.starts_in_s)
        self.notify(f"Run {message.run} was accepted{known and ': '}{known}")

    @on(messages.RunRefused)
    def _show_refused(self, message: messages.RunRefused) -> None:
        """Open the dialog again, with what was typed and the reason."""
        body = message.body
        search = f"{body['strategy']}-{body['n']}" if "n" in body else str(body["strategy"])
        self._open_submit(Submit(str(body["problem"]), search, message.error))

    @on(messages.Notice)
    def _show_notice(self, message: messages.Notice) -> None:
        self.notify(message.text, severity=message.severity)

    # ------------------------------------------------------------ time

    def tick(self) -> None:
        """A frame: advance the replay, sample the rates, follow runs, paint changes."""
        now = self._clock()
        elapsed_s = 0.0 if self._ticked_at is None else now - self._ticked_at
        self._ticked_at = now
        self.state = state.advance_replay(self.state, elapsed_s)
        if now - self._sampled_at >= SAMPLE_S:
            self._sampled_at = now
            self.state = state.take_sample(self.state, now, self._wall())
        for run in state.find_runs_to_follow(self.state):
            if run not in self._followed:
                self._followed.add(run)
                tree = self.state.trees.get(run)
                after = tree.seq if tree is not None else 0
                self._work(feed.follow_run(self._daemon, self.post_message, run, after))
        self.paint()

    def paint(self) -> None:
        """Draw the state, if it changed."""
        shown = self.state.shown
        if self.state is not self._painted:
            self._painted = self.state
            self._runs.show(self.state)
            self._tree.show(shown)
            self._log_panel.show(shown)
            for panel in self._panels:
                panel.show(self.state)
        self._tree.follow()
        self._step.show(shown, self._tree.selected, self.state.prediction)

    # ------------------------------------------------------------ actions of the user

    @on(RunList.Chosen)
    def _choose_run(self, message: RunList.Chosen) -> None:
        if message.run != self.state.chosen:
            self.state = state.choose(state.end_replay(self.state), message.run)

    def action_help(self) -> None:
        self.push_screen(Help())

    @property
    def _is_following(self) -> bool:
        return self.state.follow_newest and self._tree.following

    def action_follow(self) -> None:
        """Follow the newest run and its newest node, or stop doing so."""
        on = not self._is_following
        self.state = state.follow_newest(self.state, on)
        self.paint()
        self._tree.set_following(on)

    def action_dropped(self) -> None:
        self._tree.toggle_dropped()

    def action_category(self) -> None:
        self._log_panel.next_category()

    def action_log(self) -> None:
        self.screen.toggle_class("show-log")

    def action_submit(self) -> None:
        self._open_submit(Submit("", DEFAULT_SEARCH))

    def _open_submit(self, dialog: Submit) -> None:
        def submit(body: dict[str, Any] | None) -> None:
            if body is not None:
                self._work(feed.submit_problem(self._daemon, self.post_message, body))

        self.push_screen(dialog, submit)

    def action_cancel(self) -> None:
        run = self.state.chosen_row
        if run is None or not run.live:
            self.notify("The chosen run is already over" if run else "Choose a run first")
            return

        def cancel(sure: bool | None) -> None:
            if sure:
                self._work(feed.cancel_run(self._daemon, self.post_message, run.id))

        self.push_screen(Confirm(f"Cancel run {run.id}?"), cancel)

    def action_replay(self) -> None:
        if self.state.replay is not None and not self.state.replay.over:
            self.state = state.speed_up_replay(self.state)
            return
        run = self.state.chosen_row
        if run is None or run.live:
            self.notify("Choose a run that is over to replay it")
            return
        self._work(feed.load_replay(self._daemon, self.post_message, run.id))

    def action_export(self) -> None:
        run = self.state.shown
        if run is None:
            self.notify("Choose a run with a tree to export it")
            return

        def write(path: str | None) -> None:
            if path is None:
                return
            try:
                export.write_tree(run, Path(path).expanduser())
            except OSError as error:
                self.notify(f"Can't write {path}: {error.strerror}", severity="error")
            else:
                self.notify(f"Wrote {path}")

        hint = "A name that ends with .json writes JSON, any other SVG."
        self.push_screen(AskLine("Export the tree", f"{run.id}.svg", hint), write)

    # ------------------------------------------------------------ the filter

    def _filtered(self) -> RunList | BeamTree:
        """The panel that `/` filters: the tree when it is focused, else the runs."""
        tree = self._tree
        return tree if tree in (self.focused, self._filter.panel) else self._runs

    def action_filter(self) -> None:
        self._filter.open_for(self._filtered())

    def action_leave(self) -> None:
        """Clear the filter, else end the replay."""
        panel = self._filtered()
        if self._filter.panel is not None or panel.filter:
            self._filter.clear_filter(panel)
        elif self.state.replay is not None:
            self.state = state.end_replay(self.state)
