"""The first line: which daemon, its state, and the replay."""

from __future__ import annotations

from rich.text import Text

from flashedge.literal import show_in_line
from flashedge.tui.state.dashboard import Dashboard
from flashedge.tui.state.scores import DIM, draw_bar
from flashedge.tui.widgets.panel import Panel
from flashedge.types import USUAL_POLICY


class StatusBar(Panel):
    def __init__(self, url: str) -> None:
        super().__init__(id="status")
        self._url = url.removeprefix("http://")

    def draw(self, state: Dashboard, width: int, height: int) -> Text:
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append("FlashEdge ", style="bold")
        if state.replay is not None:
            text.append_text(_draw_replay(state))
            if state.link.state == "lost":
                text.append("  daemon lost", style="bold reverse")
            hint = "  r speed, esc closes"
            return text.append(hint if len(text) + len(hint) <= width else "", style=DIM)
        link, daemon = state.link, state.daemon
        if link.state == "lost":
            retry = f" daemon lost, next try in {link.retry_in_s:g} s "
            text.append(retry, style="bold reverse")
            return text.append(f" {show_in_line(link.error)}", style=DIM)
        if daemon is None:
            return text.append(f"connecting to {self._url}", style=DIM)
        text.append(f"{daemon.pair} ")
        text.append(daemon.state, style="bold" if daemon.is_well else "bold reverse")
        if daemon.detail:
            text.append(f" · {daemon.detail}", style="bold")
        text.append(f" · {daemon.running} running · {daemon.queued} waiting")
        if daemon.policy != USUAL_POLICY:
            text.append(f" · policy {daemon.policy}")
        if daemon.boosts:
            text.append(f" · {daemon.boosts}")
        restarts = daemon.generator.restarts + daemon.verifier.restarts
        if restarts:
            noun = "engine restart" if restarts == 1 else "engine restarts"
            text.append(f" · {restarts} {noun}", style="bold")
        return text.append(f" · {self._url}", style=DIM)


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
