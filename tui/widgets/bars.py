"""The lines at the edges: status, filter, and keys."""

from typing import NamedTuple

from rich.style import Style
from rich.text import Text
from textual import on
from textual.widget import Widget
from textual.widgets import Input

from flashedge.client.words import format_count
from flashedge.literal import show_in_line
from flashedge.tui.colours import DIM, WARNING, draw_track
from flashedge.tui.state import Dashboard, Replay
from flashedge.tui.widgets.beam_tree import BeamTree
from flashedge.tui.widgets.panel import stack_lines, wrap_parts
from flashedge.tui.widgets.runs import RunList
from flashedge.types import USUAL_POLICY


def draw_status(state: Dashboard, width: int, address: str) -> Text:
    """Draw the state of the replay, else of the daemon, with its address if there is room."""
    name = Text("FlashEdge ", style="bold")
    lost, daemon = state.lost, state.daemon
    if state.replay is not None:
        text = Text.assemble(name, _draw_replay(state.replay))
        if lost is not None:
            text.append("  daemon lost", style="bold reverse")
        hint = "  r speed, esc closes"
        return text.append(hint if len(text) + len(hint) <= width else "", style=DIM)
    if lost is not None:
        retry = f" daemon lost, next try in {lost.retry_in_s:g} s "
        error = Text(show_in_line(lost.error), style=DIM)
        return _stack(name, [Text(retry, style="bold reverse"), error], width)
    if daemon is None:
        return name.append(f"connecting to {address}", style=f"not bold {DIM}")
    name.append(f"{daemon.pair} ", style="not bold")
    name.append(daemon.state, style="bold" if daemon.is_well else "bold reverse")
    parts = [Text(daemon.detail, style=f"bold {WARNING}")] if daemon.detail else []
    restarts = daemon.generator.restarts + daemon.verifier.restarts
    parts += [Text(format_count(restarts, "engine restart"), style="bold")] if restarts else []
    parts += [Text(f"{daemon.running} running"), Text(f"{daemon.queued} waiting")]
    parts += [Text(f"policy {daemon.policy}")] if daemon.policy != USUAL_POLICY else []
    parts += [Text(daemon.boosts)] if daemon.boosts else []
    whole = _stack(name, [*parts, Text(address, style=DIM)], width)
    short = _stack(name, parts, width)
    return whole if whole.plain.count("\n") == short.plain.count("\n") else short


def _stack(name: Text, parts: list[Text], width: int) -> Text:
    """Draw the name and the parts in one line, or in several if they need more room."""
    return stack_lines(*wrap_parts([name, *parts], width, " · "))


def _draw_replay(replay: Replay) -> Text:
    part = replay.at_s / replay.total_s if replay.total_s else 1.0
    end = " end" if replay.over else ""
    at = f"{replay.at_s:.1f} of {replay.total_s:.1f} s{end}"
    speed = f" REPLAY {replay.speed}× ", "bold reverse"
    return Text.assemble(speed, f" {replay.view.id} {draw_track(part, 12)} {at}")


class FilterLine(Input):
    """A field that `open_for` shows for a panel. Each key that is typed in it filters the panel."""

    def __init__(self) -> None:
        hint = "filter: enter keeps it, esc clears it"
        super().__init__(id="filter", placeholder=hint, compact=True)
        self.panel: RunList | BeamTree | None = None

    def open_for(self, panel: RunList | BeamTree) -> None:
        self.panel = panel
        self.value = show_in_line(panel.filter)
        self.add_class("open")
        self.focus()

    def clear_filter(self, panel: RunList | BeamTree) -> None:
        panel.set_filter("")
        self._close(panel)

    @on(Input.Changed)
    def _update(self, event: Input.Changed) -> None:
        if self.panel is not None:
            self.panel.set_filter(event.value)

    @on(Input.Submitted)
    def _keep(self) -> None:
        if self.panel is not None:
            self._close(self.panel)

    def _close(self, panel: RunList | BeamTree) -> None:
        self.panel = None
        self.remove_class("open")
        panel.focus()


class Command(NamedTuple):
    """What the user may do, by a key or in the command palette."""

    key: str
    word: str
    """Its name in the screen's last line. Empty if it is not there."""
    action: str
    title: str
    """Its name in the palette. Empty if it is not there."""
    help: str


COMMANDS = (
    Command("?", "help", "help", "Help", "all keys and marks"),
    Command("/", "filter", "filter", "Filter", "the runs, or the tree when it is focused"),
    Command("s", "submit", "submit", "Submit", "a problem"),
    Command("c", "cancel", "cancel", "Cancel", "the chosen run"),
    Command("r", "replay", "replay", "Replay", "the chosen run; again: faster"),
    Command("f", "follow", "follow", "Follow", "the newest run and its newest node"),
    Command("^p", "commands", "command_palette", "", "this list"),
    Command("q", "quit", "quit", "Quit", "the runs go on"),
    Command("y", "copy", "copy('step')", "Copy the step", "the text of the marked node"),
    Command("Y", "", "copy('answer')", "Copy the answer", "of the chosen run"),
    Command("e", "export", "export", "Export", "the shown tree, as SVG or JSON"),
    Command("p", "pruned", "dropped", "Pruned nodes", "hide or show them"),
    Command("v", "events", "category", "Events", "of the next category"),
    Command("l", "", "log", "Log", "in place of the step, in a small terminal"),
)
KEYS = tuple((c.key, c.word, c.action) for c in COMMANDS if c.word)
"""(key, word, action) of the commands in the last line, the most useful ones first."""


class KeyBar(Widget):
    def __init__(self) -> None:
        super().__init__(id="keys")

    def render(self) -> Text:
        text = Text(no_wrap=True)
        for key, word, action in KEYS:
            gap = "  " if text else ""
            if len(text) + len(gap) + len(key) + 1 + len(word) > self.size.width:
                break
            click = Style(meta={"@click": f"app.{action}"})
            text.append(gap)
            text.append(key, Style(bold=True, reverse=True) + click)
            text.append(f" {word}", click)
        return text
