"""The first line: which daemon, how it is, what is replayed."""

from __future__ import annotations

from rich.text import Text

from flashedge.tui.state.dashboard import Dashboard
from flashedge.tui.state.scores import DIM, bar
from flashedge.tui.widgets.panel import Panel


class StatusBar(Panel):
    def __init__(self, url: str) -> None:
        super().__init__(id="status")
        self._url = url.removeprefix("http://")

    def draw(self, state: Dashboard, width: int, height: int) -> Text:
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append("FlashEdge ", style="bold")
        if state.replay is not None:
            text.append_text(_replay(state))
            if state.link.state == "lost":
                text.append("  daemon lost", style="bold reverse")
            hint = "  r speed, esc leaves"
            return text.append(hint if len(text) + len(hint) <= width else "", style=DIM)
        link, look = state.link, state.look
        if link.state == "lost":
            retry = f" daemon lost, asked again every {link.retry_in_s:g} s "
            text.append(retry, style="bold reverse")
            return text.append(f" {link.error}", style=DIM)
        if look is None:
            return text.append(f"connecting to {self._url}", style=DIM)
        text.append(f"{look.pair} ")
        text.append(look.state, style="bold" if look.state == "ready" else "bold reverse")
        text.append(f" · {look.running} running · {look.queued} waiting")
        restarts = look.generator.restarts + look.verifier.restarts
        if restarts:
            text.append(f" · {restarts} engine restarts", style="bold")
        return text.append(f" · {self._url}", style=DIM)


def _replay(state: Dashboard) -> Text:
    replay = state.replay
    assert replay is not None
    part = replay.at_s / replay.total_s if replay.total_s else 1.0
    text = Text()
    text.append(f" REPLAY {replay.speed}× ", style="bold reverse")
    text.append(f" {replay.run} ")
    text.append(bar(part, 12).replace(" ", "░"))
    over = " the end" if replay.over else ""
    return text.append(f" {replay.at_s:.1f} of {replay.total_s:.1f} s{over}")
