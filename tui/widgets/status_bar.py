"""The first line: which daemon, its state, and the replay."""

from __future__ import annotations

from rich.text import Text

from flashedge.client.words import format_count
from flashedge.literal import show_in_line
from flashedge.tui.state.dashboard import Dashboard
from flashedge.tui.state.scores import DIM, WARNING, draw_bar
from flashedge.tui.widgets.panel import Panel, stack_lines, wrap_parts
from flashedge.types import USUAL_POLICY


class StatusBar(Panel):
    def __init__(self, url: str) -> None:
        super().__init__(id="status")
        self._url = url.removeprefix("http://")

    def draw(self, state: Dashboard, width: int, height: int) -> Text:
        name = Text("FlashEdge ", style="bold")
        if state.replay is not None:
            text = Text.assemble(name, _draw_replay(state))
            if state.link.state == "lost":
                text.append("  daemon lost", style="bold reverse")
            hint = "  r speed, esc closes"
            return text.append(hint if len(text) + len(hint) <= width else "", style=DIM)
        link, daemon = state.link, state.daemon
        if link.state == "lost":
            retry = f" daemon lost, next try in {link.retry_in_s:g} s "
            error = Text(show_in_line(link.error), style=DIM)
            return _stack(name, [Text(retry, style="bold reverse"), error], width)
        if daemon is None:
            return name.append(f"connecting to {self._url}", style=f"not bold {DIM}")
        name.append(f"{daemon.pair} ", style="not bold")
        name.append(daemon.state, style="bold" if daemon.is_well else "bold reverse")
        warnings = [Text(daemon.detail, style=f"bold {WARNING}")] if daemon.detail else []
        restarts = daemon.generator.restarts + daemon.verifier.restarts
        if restarts:
            warnings.append(Text(format_count(restarts, "engine restart"), style="bold"))
        figures = [Text(f"{daemon.running} running"), Text(f"{daemon.queued} waiting")]
        if daemon.policy != USUAL_POLICY:
            figures.append(Text(f"policy {daemon.policy}"))
        if daemon.boosts:
            figures.append(Text(daemon.boosts))
        address = Text(self._url, style=DIM)
        whole = _stack(name, [*warnings, *figures, address], width)
        short = _stack(name, [*warnings, *figures], width)
        return whole if whole.plain.count("\n") == short.plain.count("\n") else short


def _stack(name: Text, parts: list[Text], width: int) -> Text:
    """The name and the parts in one line; in more, where they have no room in it."""
    lines = wrap_parts([name, *parts], width, " · ")
    return stack_lines(*lines)


def _draw_replay(state: Dashboard) -> Text:
    replay = state.replay
    assert replay is not None
    part = replay.at_s / replay.total_s if replay.total_s else 1.0
    text = Text()
    text.append(f" REPLAY {replay.speed}× ", style="bold reverse")
    text.append(f" {replay.run} ")
    text.append(draw_bar(part, 12).replace(" ", "░"))
    end = " end" if replay.over else ""
    return text.append(f" {replay.at_s:.1f} of {replay.total_s:.1f} s{end}")
