"""The dashboard. Workers and handlers replace its state on one event loop, and panels draw it.

Events are folded and drawn together, at most FRAMES_PER_S times a second.
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from textual import events, on, work
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.filter import LineFilter
from textual.message import Message
from textual.notifications import SeverityLevel
from textual.screen import Screen
from textual.theme import Theme

from flashedge.client.async_client import AsyncClient
from flashedge.client.follow import RetryPolicy, follow
from flashedge.client.run_figures import find_answer
from flashedge.client.run_view import Numbered, RunView
from flashedge.client.words import describe_wait
from flashedge.console import LiteralConsole
from flashedge.errors import FlashEdgeError, RunInterrupted
from flashedge.literal import show_in_line, show_literally
from flashedge.tui import colours, export, state
from flashedge.tui.device import DeviceSample, read_devices
from flashedge.tui.state import Dashboard
from flashedge.tui.summary import list_strategies, parse_run, parse_status
from flashedge.tui.widgets.answer import AnswerPanel, draw_votes
from flashedge.tui.widgets.bars import COMMANDS, FilterLine, KeyBar, draw_status
from flashedge.tui.widgets.beam_tree import BeamTree
from flashedge.tui.widgets.certainty import CertaintyPanel
from flashedge.tui.widgets.dialogs import AskLine, Confirm, Draft, Help, Submit
from flashedge.tui.widgets.lines import EventLogPanel
from flashedge.tui.widgets.machine import build_machine_panels
from flashedge.tui.widgets.panel import COMPACT, SHORT, ActingFilter, Panel, PanelGroup
from flashedge.tui.widgets.runs import RunList
from flashedge.tui.widgets.texts import ProblemPanel, SolutionPanel, StepPanel

FRAMES_PER_S = 12.0  # chosen by hand: one a second would stutter, a hundred are slow over ssh
SAMPLE_S = 0.5
"""Seconds between two samples of the runs' token counts, from which the rates are computed."""
KEY_TIMEOUT_S = 0.5
"""After this long the next key is handled even if the one before was not reported as handled.
Chosen by hand: at a tenth, keys overtake slow ones; at ten times, the keyboard seems dead."""
POLL_S, DEVICE_POLL_S = 1.0, 2.0
"""Seconds between two polls of the daemon, and of the cards. Chosen by hand: at a tenth, polls take
processor time from the engines; at ten times, what is shown is old."""
LISTED_RUNS = 50  # how many of the newest runs each poll lists: some screens
OLDER_RUNS = 200  # how many older ones are fetched at once, at the list's end and for a filter

RETRIES = RetryPolicy(first_s=0.5, longest_s=8.0)
"""The dashboard never gives up: a user may start the daemon at any time."""
WIDE, HUGE, TALL = 100, 170, 32
"""Least cells for two columns of panels and for three, and least lines of a tall screen."""
STYLES = ("dashboard.tcss", "wide.tcss", "dialogs.tcss")
_KEY_NAMES = {"?": "question_mark", "/": "slash", "^p": "ctrl+p"}
_StatePanel = Panel | RunList | BeamTree | EventLogPanel | ProblemPanel | SolutionPanel


@dataclass
class KeyHandled(Message):
    """The key with this number has been handled wherever it could be."""

    number: int


class DashboardApp(App[None]):
    """The whole screen. devices: reads samples of cards, may block; clock: monotonic seconds; wall:
    Unix seconds; poll_s: pause between two polls; theme_file: remembers the chosen theme."""

    CSS_PATH = [Path(__file__).with_name(name) for name in STYLES]  # noqa: RUF012
    TITLE = "FlashEdge"
    HORIZONTAL_BREAKPOINTS = [(0, COMPACT), (WIDE, "-wide"), (HUGE, "-huge")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, SHORT), (TALL, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(_KEY_NAMES.get(c.key, c.key), c.action, c.title) for c in COMMANDS),
        Binding("escape", "leave", "Leave", show=False),
    ]

    def __init__(
        self,
        daemon: AsyncClient,
        *,
        devices: Callable[[Sequence[str]], tuple[DeviceSample, ...]] = read_devices,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        poll_s: float = POLL_S,
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
        address = daemon.base_url.removeprefix("http://")
        self._bar = Panel(lambda now, width, _: draw_status(now, width, address), id="status")
        self._runs, self._tree, self._step = RunList(), BeamTree(), StepPanel()
        about = ProblemPanel(), AnswerPanel(), SolutionPanel()
        self._question = PanelGroup(*about, id="question")
        self._side = Panel(draw_votes, id="votes", title="Votes"), CertaintyPanel()
        machine = build_machine_panels()
        self._machine = PanelGroup(*machine, id="machine")
        self._log_panel = EventLogPanel()
        frame = self._bar, self._runs, self._tree, self._log_panel
        self._panels: tuple[_StatePanel, ...] = (*frame, *about, *self._side, *machine)
        """All but the step, which also depends on the tree's cursor."""
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
            yield Vertical(*self._side, self._machine, self._log_panel, id="side")
        yield self._filter
        yield KeyBar()

    def get_line_filters(self) -> Sequence[LineFilter]:
        light = () if self.current_theme.dark else (colours.LightFilter(),)
        return (*light, *super().get_line_filters(), ActingFilter())

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = False,
    ) -> None:
        """Show a message. `markup` has no effect: no message is markup."""
        shown = show_literally(message)
        heading = show_in_line(title)
        super().notify(shown, title=heading, severity=severity, timeout=timeout, markup=False)

    async def on_event(self, event: events.Event) -> None:
        """Queue keys, and make the control characters of pasted text visible."""
        if isinstance(event, events.Paste):
            event.text = show_literally(re.sub("\r\n?", "\n", event.text))
        if isinstance(event, events.Key) and not event.is_forwarded:
            self._typed.append(event)
            if self._key_sent_at is None:
                await self._handle_next_key()
        else:
            await super().on_event(event)

    async def _handle_next_key(self) -> None:
        """Handle the oldest key that waits. A key may move the focus or open a dialog, and the next
        key belongs there. But each key passes the queues of several widgets, where the next could
        overtake it. So the next waits for a message that takes the same way."""
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
            self.call_later(self._handle_next_key)  # after a queued change of the focus

    def _resume_keys(self) -> None:
        """Handle the next key even if KeyHandled never comes, because its widget was removed."""
        sent_at = self._key_sent_at
        if self._typed and (sent_at is None or time.monotonic() - sent_at > KEY_TIMEOUT_S):
            self.call_later(self._handle_next_key)

    def on_mount(self) -> None:
        self.register_theme(colours.OURS)
        chosen = colours.load_choice(self._theme_file)
        self.theme = chosen if chosen in self.available_themes else colours.OURS.name
        self.theme_changed_signal.subscribe(self, self._remember_theme)
        self._runs.focus()
        self._watch_daemon()
        self._watch_devices()
        self.set_interval(1 / FRAMES_PER_S, self.tick)

    def _remember_theme(self, theme: Theme) -> None:
        if self._theme_file is None or theme.name == colours.load_choice(self._theme_file):
            return
        try:
            self._theme_file.parent.mkdir(parents=True, exist_ok=True)
            self._theme_file.write_text(f"{theme.name}\n", encoding="utf-8")
        except OSError as error:
            self.notify(f"Can't remember the theme: {error.strerror}", severity="warning")

    @work
    async def _watch_daemon(self) -> None:
        """Poll the status and the runs forever; the strategies once for each connection."""
        failures, is_new = 0, True
        while True:
            try:
                listing = self._daemon.runs(limit=LISTED_RUNS)
                status, newest = await asyncio.gather(self._daemon.status(), listing)
                if is_new:
                    names = list_strategies(await self._daemon.models())
                    self.state, is_new = replace(self.state, strategies=names), False
            except FlashEdgeError as error:
                failures, is_new = failures + 1, True
                pause_s = RETRIES.find_pause_s(failures)
                self.state = state.lose_daemon(self.state, error.line, pause_s)
            else:
                failures, pause_s = 0, self._poll_s
                daemon, rows = parse_status(status), tuple(map(parse_run, newest["data"]))
                self.state = state.update_daemon(
                    self.state, daemon, rows, follow=self._is_following
                )
                if self._runs.filter:
                    self._load_older()
            await asyncio.sleep(pause_s)

    @work
    async def _watch_devices(self) -> None:
        """Sample the engines' cards forever. Reading may block, so it happens in a thread."""
        while True:
            cards = self.state.daemon.cards if self.state.daemon is not None else ()
            devices = await asyncio.to_thread(self._devices, cards)
            self.state = replace(self.state, devices=devices)
            await asyncio.sleep(DEVICE_POLL_S)

    @work
    async def _follow_run(self, run: str, after: int) -> None:
        """Receive the run's events to its end, through lost connections."""
        is_interrupted = True
        try:
            async with aclosing(follow(self._daemon, run, RETRIES, after)) as pieces:
                async for items in pieces:
                    self._inbox.setdefault(run, []).extend(items)
            is_interrupted = False
        except RunInterrupted:
            pass
        except FlashEdgeError as error:  # the run was removed, or the key is wrong
            self.notify(error.line, severity="warning")
        self.fold_inbox()
        self._followed.discard(run)
        if is_interrupted:
            self.state = state.interrupt_run(self.state, run)

    def fold_inbox(self) -> None:
        """Fold the events that have arrived since the last call."""
        inbox, self._inbox = self._inbox, {}
        for run, items in inbox.items():
            self.state = state.fold_events(self.state, run, items)

    @on(RunList.EndReached)
    @work
    async def _load_older(self) -> None:
        """Fetch a page of older runs: at the list's end, and page by page for a filter."""
        oldest = self.state.oldest
        if not self.state.has_older or oldest is None or self._is_loading_older:
            return
        self._is_loading_older = True
        try:
            page = (await self._daemon.runs(limit=OLDER_RUNS, before=oldest.id))["data"]
        except FlashEdgeError as error:
            page = []
            self.notify(f"Can't list older runs: {error.line}", severity="warning")
        self._is_loading_older = False
        self.state = state.add_older(self.state, tuple(map(parse_run, page)))
        if self.state.oldest != oldest and self._runs.filter:
            self._load_older()

    def tick(self) -> None:
        """A frame: fold events, advance the replay, sample the rates, follow runs, paint."""
        self._resume_keys()
        self.fold_inbox()
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
                self._follow_run(run, tree.seq if tree is not None else 0)
        self.paint()

    def paint(self) -> None:
        """Draw the state, if it has changed, and what depends on the tree's cursor."""
        if self.state is not self._painted:
            self._painted = self.state
            self._question.retitle(_title_run(self.state))
            devices = self.state.devices  # each of several cards is named in its own line
            self._machine.retitle("Machine", devices[0].name if len(devices) == 1 else "")
            for panel in self._panels:
                panel.show(self.state)
            self._withdraw_question()
        self._tree.follow()
        self._step.show(self.state, self._tree.selected)

    def _withdraw_question(self) -> None:
        """Close the question whether to cancel a run as soon as the run is over."""
        screen = self.screen_stack[-1] if self.screen_stack else None
        if isinstance(screen, Confirm) and screen.run:
            row = next((r for r in self.state.listed if r.id == screen.run), None)
            if row is not None and not row.live:
                screen.dismiss(False)
                self.notify(f"Run {screen.run} is over: it was not cancelled")

    @on(RunList.Chosen)
    def _choose_run(self, message: RunList.Chosen) -> None:
        if message.run != self.state.chosen:
            self.state = state.choose(state.show_replay(self.state, None), message.run)

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

    def action_copy(self, what: str) -> None:
        """Copy the step or the answer, as `what` says."""
        run = self.state.shown
        answer = show_literally(find_answer(run) or "") if run is not None else ""
        text = answer if what == "answer" else self._step.text
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

    def action_submit(self, draft: Draft | None = None, error: str = "") -> None:
        """Ask for a problem. draft, error: what the daemon has refused, and why, to edit it."""
        pair = self.state.daemon.pair if self.state.daemon is not None else ""

        def submit(draft: Draft | None) -> None:
            if draft is not None:
                self._submit(draft)

        self.push_screen(Submit(self.state.strategies, draft, error, pair), submit)

    @work
    async def _submit(self, draft: Draft) -> None:
        try:
            accepted = await self._daemon.submit(draft.build_body())
        except FlashEdgeError as error:
            self.action_submit(draft, error.line)
            return
        run = str(accepted["id"])
        self.state = state.choose(state.show_replay(self.state, None), run, follow_newest=True)
        known = describe_wait(accepted.get("position"), accepted.get("starts_in_s"))
        self.notify(f"Run {run} was accepted{known and ': '}{known}")

    def action_cancel(self) -> None:
        run, row = self.state.chosen, self.state.chosen_row  # a new run has no row yet
        if run is None or (row is not None and not row.live):
            self.notify("The chosen run is already over" if run else "Choose a run first")
            return

        def cancel(sure: bool | None) -> None:
            if sure:
                self._cancel(run)

        self.push_screen(Confirm(f"Cancel run {run}?", run), cancel)

    @work
    async def _cancel(self, run: str) -> None:
        try:
            found = await self._daemon.cancel(run)
            self.notify(f"Run {run} is {found.get('status')}")
        except FlashEdgeError as error:
            self.notify(f"Can't cancel the run: {error.line}", severity="error")

    @work
    async def action_replay(self) -> None:
        """Replay the chosen run. While a replay runs, go to its next speed."""
        if self.state.replay is not None and not self.state.replay.over:
            self.state = state.speed_up_replay(self.state)
            return
        run = self.state.chosen_row
        if run is None or run.live:
            self.notify("Choose a run that is over to replay it")
            return
        items: list[Numbered] = []
        try:
            async with aclosing(self._daemon.events(run.id)) as pieces:
                async for piece in pieces:
                    items.extend(piece)
        except RunInterrupted:
            pass  # the events before the interruption can be replayed
        except FlashEdgeError as error:
            self.notify(f"Can't replay the run: {error.line}", severity="error")
            return
        if items:
            self.state = state.show_replay(self.state, state.build_replay(run.id, items))
        else:
            self.notify(f"Run {run.id} has no events to replay", severity="warning")

    def action_export(self) -> None:
        run = self.state.shown
        if run is None:
            self.notify("Choose a run with a tree to export it")
            return
        hint = "A name that ends with .json writes JSON, any other SVG."
        dialog = AskLine("Export the tree", f"{run.id}.svg", hint)
        self.push_screen(dialog, partial(self._export, run))

    def _export(self, run: RunView, path: str | None) -> None:
        if path is None:
            return
        try:
            export.write_tree(run, Path(path).expanduser())
            self.notify(f"Wrote {path}")
        except (OSError, RuntimeError) as error:  # RuntimeError: no user has this ~name
            reason = getattr(error, "strerror", None) or error
            self.notify(f"Can't write {path}: {reason}", severity="error")

    def _find_filtered(self) -> RunList | BeamTree:
        """The panel that `/` filters: the tree when it is focused, else the runs."""
        tree = self._tree
        return tree if tree in (self.focused, self._filter.panel) else self._runs

    def action_filter(self) -> None:
        self._filter.open_for(self._find_filtered())

    def action_leave(self) -> None:
        """Clear the filter, else end the replay."""
        panel = self._find_filtered()
        if self._filter.panel is not None or panel.filter:
            self._filter.clear_filter(panel)
        elif self.state.replay is not None:
            self.state = state.show_replay(self.state, None)


def _title_run(now: Dashboard) -> str:
    """`run-2dcea5c48dce · beam-16 · running`."""
    run, row = now.shown, now.chosen_row
    if run is None:
        return "Problem" if row is None else f"{row.id} · {row.search} · {row.status}"
    search = [row.search] if row is not None and row.id == run.id else []
    return " · ".join([run.id, *search, run.state])
