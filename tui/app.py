"""The dashboard. Workers post messages, the handlers here own the state, panels draw it.

Events are folded when they arrive; the screen follows at most FRAMES_PER_S times a second.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from textual import events, on
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.filter import LineFilter
from textual.message import Message
from textual.screen import Screen
from textual.theme import Theme

from flashedge.client.async_client import AsyncClient
from flashedge.client.run_figures import find_answer
from flashedge.client.run_fold import Numbered
from flashedge.client.words import describe_wait
from flashedge.console import LiteralConsole
from flashedge.literal import show_in_line, show_literally
from flashedge.tui import colours, export, feed, state
from flashedge.tui.device import read_devices
from flashedge.tui.state import Dashboard
from flashedge.tui.widgets.answer import AnswerPanel, draw_votes
from flashedge.tui.widgets.bars import COMMANDS, FilterLine, KeyBar, draw_status
from flashedge.tui.widgets.beam_tree import BeamTree
from flashedge.tui.widgets.certainty import CertaintyPanel
from flashedge.tui.widgets.dialogs import AskLine, Confirm, Draft, Help, Submit
from flashedge.tui.widgets.event_log import EventLogPanel
from flashedge.tui.widgets.machine import build_machine_panels
from flashedge.tui.widgets.panel import COMPACT, SHORT, ActingFilter, Panel, PanelGroup
from flashedge.tui.widgets.runs import RunList
from flashedge.tui.widgets.texts import ProblemPanel, SolutionPanel, StepPanel

FRAMES_PER_S = 12.0
SAMPLE_S = 0.5
KEY_TIMEOUT_S = 0.5
WIDE_COLUMNS, HUGE_COLUMNS = 100, 170
TALL_LINES = 32
_NAMES = {"?": "question_mark", "/": "slash", "^p": "ctrl+p"}


@dataclass
class KeyHandled(Message):
    """The key with this number has been handled wherever it could be."""

    number: int


class DashboardApp(App[None]):
    """The whole screen.

    devices: reads samples of cards, may block; clock: monotonic seconds; wall: Unix seconds;
    theme_file: remembers the chosen theme.
    """

    CSS_PATH = ["dashboard.tcss", "wide.tcss", "dialogs.tcss"]  # noqa: RUF012
    TITLE = "FlashEdge"
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012
        (0, COMPACT),
        (WIDE_COLUMNS, "-wide"),
        (HUGE_COLUMNS, "-huge"),
    ]
    VERTICAL_BREAKPOINTS = [(0, SHORT), (TALL_LINES, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(_NAMES.get(c.key, c.key), c.action, c.title) for c in COMMANDS),
        Binding("escape", "leave", "Leave", show=False),
    ]

    def __init__(
        self,
        daemon: AsyncClient,
        *,
        devices: feed.ReadDevices = read_devices,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        poll_s: float = feed.POLL_S,
        theme_file: Path | None = None,
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
        self._problem, self._solution = ProblemPanel(), SolutionPanel()
        address = daemon.base_url.removeprefix("http://")
        self._bar = Panel(lambda now, width, _: draw_status(now, width, address), id="status")
        self._answer, self._certainty = AnswerPanel(), CertaintyPanel()
        self._votes = Panel(draw_votes, id="votes", title="Votes")
        machine = build_machine_panels()
        panels = self._bar, self._answer, self._votes, self._certainty
        self._panels: tuple[Panel, ...] = (*panels, *machine)
        self._machine = PanelGroup(*machine, id="machine")
        self._machine.retitle("Machine")
        self._question = PanelGroup(*(self._problem, self._answer, self._solution), id="question")
        self._theme_file = theme_file
        self._typed: deque[events.Key] = deque()
        """Keys that wait until the one before them has been handled."""

        self._key_sent_at: float | None = None
        """When the key was sent that is being handled now, in monotonic seconds."""

        self._keys_sent = 0
        self._is_loading_older = False
        self._painted: Dashboard | None = None
        self._filter = FilterLine()
        self._ticked_at: float | None = None
        self._sampled_at = float("-inf")

    def compose(self) -> ComposeResult:
        yield self._bar
        with Vertical(id="body"):
            with Vertical(id="main"):
                yield Vertical(self._runs, self._question, id="left")
                yield Vertical(self._tree, self._step, id="middle")
            yield Vertical(self._votes, self._certainty, self._machine, self._log_panel, id="side")
        yield self._filter
        yield KeyBar()

    # ------------------------------------------------------------ text from outside

    def get_line_filters(self) -> Sequence[LineFilter]:
        light = () if self.current_theme.dark else (colours.LightFilter(),)
        return (*light, *super().get_line_filters(), ActingFilter())

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: feed.Severity = "information",
        timeout: float | None = None,
        markup: bool = False,
    ) -> None:
        """Show a message. `markup` has no effect: no message is markup."""
        shown = show_literally(message)
        heading = show_in_line(title)
        super().notify(shown, title=heading, severity=severity, timeout=timeout, markup=False)

    async def on_event(self, event: events.Event) -> None:
        """Make control characters visible in what the user pastes, in any field."""
        if isinstance(event, events.Paste):
            event.text = show_literally(re.sub("\r\n?", "\n", event.text))
        if isinstance(event, events.Key) and not event.is_forwarded:
            self._typed.append(event)
            if self._key_sent_at is None:
                await self._handle_next_key()
        else:
            await super().on_event(event)

    # ------------------------------------------------------------ keys in their order

    async def _handle_next_key(self) -> None:
        """Handle the oldest key that waits.

        A key may move the focus or open a dialog, and the next one belongs there. But each key goes
        through a queue of the focused widget and of all above it, and keys that are typed ahead
        would overtake it. So they wait for a message that goes the same way behind it.
        """
        self._key_sent_at = None
        if not self._typed or not self.screen_stack or not self.screen.is_mounted:
            return  # a dialog that opens gets its keys at the next frame
        key = self._typed.popleft()
        self._key_sent_at, self._keys_sent = time.monotonic(), self._keys_sent + 1
        await super().on_event(key)
        if self.screen_stack:  # it was not the key that quits
            (self.focused or self.screen).post_message(KeyHandled(self._keys_sent))

    @on(KeyHandled)
    async def _receive_handled(self, message: KeyHandled) -> None:
        if message.number == self._keys_sent:
            self.call_later(self._handle_next_key)  # behind the change of the focus

    def _expect_key(self) -> None:
        """Go on with the next key, also where a widget with the message was removed."""
        sent_at = self._key_sent_at
        if self._typed and (sent_at is None or time.monotonic() - sent_at > KEY_TIMEOUT_S):
            self.call_later(self._handle_next_key)

    # ------------------------------------------------------------ start

    def on_mount(self) -> None:
        self.register_theme(colours.OURS)
        chosen = colours.load_choice(self._theme_file)
        self.theme = chosen if chosen in self.available_themes else colours.OURS.name
        self.theme_changed_signal.subscribe(self, self._remember_theme)
        self._runs.focus()
        self.run_worker(feed.watch_daemon(self._daemon, self.post_message, self._poll_s))
        self.run_worker(
            feed.watch_devices(self._devices, lambda: self.state.cards, self.post_message)
        )
        self.set_interval(1 / FRAMES_PER_S, self.tick)

    def _remember_theme(self, theme: Theme) -> None:
        if self._theme_file is None or theme.name == colours.load_choice(self._theme_file):
            return
        try:
            colours.save_choice(self._theme_file, theme.name)
        except OSError as error:
            self.notify(f"Can't remember the theme: {error.strerror}", severity="warning")

    # ------------------------------------------------------------ messages of workers

    @on(feed.Changed)
    def _change(self, message: feed.Changed) -> None:
        self.state = message.change(self.state)

    @on(feed.EventsReceived)
    def _receive_events(self, message: feed.EventsReceived) -> None:
        if not self._inbox:
            self.call_later(self.fold_inbox)  # behind the queued messages: one fold for all
        self._inbox.setdefault(message.run, []).extend(message.items)

    def fold_inbox(self) -> None:
        """Fold what arrived since the last fold, in one go."""
        inbox, self._inbox = self._inbox, {}
        for run, items in inbox.items():
            self.state = state.fold_events(self.state, run, items)

    @on(feed.FollowEnded)
    def _end_follow(self, message: feed.FollowEnded) -> None:
        self.fold_inbox()
        self._followed.discard(message.run)
        if message.interrupted:
            self.state = state.interrupt_run(self.state, message.run)

    @on(feed.StatusReceived)
    def _receive_status(self, message: feed.StatusReceived) -> None:
        follow = self._is_following
        self.state = state.update_daemon(self.state, message.daemon, message.runs, follow=follow)
        if self._runs.filter:
            self._load_older()

    @on(feed.OlderReceived)
    def _receive_older(self, message: feed.OlderReceived) -> None:
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
            self.run_worker(feed.load_older(self._daemon, self.post_message, oldest.id))

    @on(feed.RunAccepted)
    def _show_accepted(self, message: feed.RunAccepted) -> None:
        ended = state.end_replay(self.state)
        self.state = state.choose(ended, message.run, follow_newest=True)
        known = describe_wait(message.position, message.starts_in_s)
        self.notify(f"Run {message.run} was accepted{known and ': '}{known}")

    @on(feed.RunRefused)
    def _show_refused(self, message: feed.RunRefused) -> None:
        self._open_submit(message.draft, message.error)

    @on(feed.Notice)
    def _show_notice(self, message: feed.Notice) -> None:
        self.notify(message.text, severity=message.severity)

    # ------------------------------------------------------------ time

    def tick(self) -> None:
        """A frame: advance the replay, sample the rates, follow runs, paint changes."""
        self._expect_key()
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
                self.run_worker(feed.follow_run(self._daemon, self.post_message, run, after))
        self.paint()

    def paint(self) -> None:
        shown = self.state.shown
        if self.state is not self._painted:
            self._painted = self.state
            self._runs.show(self.state)
            self._question.retitle(_title_run(self.state))
            self._problem.show(self.state.problem)
            self._solution.show(shown)
            self._tree.show(shown)
            self._log_panel.show(shown)
            devices = self.state.devices  # several cards have their names in their lines
            self._machine.retitle("Machine", devices[0].name if len(devices) == 1 else "")
            for panel in self._panels:
                panel.show(self.state)
            self._withdraw_question()
        self._tree.follow()
        self._step.show(shown, self._tree.selected, self.state.prediction)

    def _withdraw_question(self) -> None:
        """Close the question whether to cancel a run once that is over."""
        screen = self.screen_stack[-1] if self.screen_stack else None
        if isinstance(screen, Confirm) and screen.run:
            row = next((r for r in self.state.listed if r.id == screen.run), None)
            if row is not None and not row.live:
                screen.dismiss(False)
                self.notify(f"Run {screen.run} is over: it was not cancelled")

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

    def action_copy(self) -> None:
        self._copy("step", self._step.text)

    def action_copy_answer(self) -> None:
        run = self.state.shown
        self._copy("answer", "" if run is None else show_literally(find_answer(run) or ""))

    def _copy(self, what: str, text: str) -> None:
        if not text:
            self.notify(f"There is no {what} to copy", severity="warning")
            return
        self.copy_to_clipboard(text)
        self.notify(f"Copied the {what}")

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """The dashboard's actions, for the command palette."""
        for command in COMMANDS:
            if command.title:
                run = partial(self.run_action, command.action)
                yield SystemCommand(command.title, f"{command.help} ({command.key})", run)
        yield SystemCommand("Theme", "the colours; the choice is remembered", self.search_themes)

    def action_submit(self) -> None:
        self._open_submit(None)

    def _open_submit(self, draft: Draft | None, error: str = "") -> None:
        def submit(draft: Draft | None) -> None:
            if draft is not None:
                self.run_worker(feed.submit_problem(self._daemon, self.post_message, draft))

        pair = self.state.daemon.pair if self.state.daemon is not None else ""
        self.push_screen(Submit(self.state.strategies, draft, error, pair), submit)

    def action_cancel(self) -> None:
        run = self.state.chosen_row
        if run is None or not run.live:
            self.notify("The chosen run is already over" if run else "Choose a run first")
            return

        def cancel(sure: bool | None) -> None:
            if sure:
                self.run_worker(feed.cancel_run(self._daemon, self.post_message, run.id))

        self.push_screen(Confirm(f"Cancel run {run.id}?", run.id), cancel)

    def action_replay(self) -> None:
        if self.state.replay is not None and not self.state.replay.over:
            self.state = state.speed_up_replay(self.state)
            return
        run = self.state.chosen_row
        if run is None or run.live:
            self.notify("Choose a run that is over to replay it")
            return
        self.run_worker(feed.load_replay(self._daemon, self.post_message, run.id))

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


def _title_run(now: Dashboard) -> str:
    """`run-2dcea5c48dce · beam-16 · running`."""
    run, row = now.shown, now.chosen_row
    if run is None and row is None:
        return "Problem"
    name = run.id if run is not None else now.chosen or ""
    parts = [name, *([row.search] if row is not None and row.id == name else [])]
    if run is not None:
        parts.append(run.state)
    elif row is not None:
        parts.append(row.status)
    return " · ".join(parts)
