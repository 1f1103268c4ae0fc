"""How fast the last requests were, and how much of their prompts the prefix cache had."""

from __future__ import annotations

from rich.text import Text

from flashedge.tui.state.dashboard import Dashboard
from flashedge.tui.state.summary import DaemonStatus, Latency
from flashedge.tui.widgets.panel import COMPACT, Panel, label_line, stack_lines

_NAMES = {"chat": "chat", "run": "search"}


class LatencyPanel(Panel):
    """Takes no line in a small terminal, nor while the daemon has answered nothing."""

    def __init__(self) -> None:
        super().__init__(id="latency")

    def show(self, state: Dashboard) -> None:
        if self.is_attached:
            self.display = not self.screen.has_class(COMPACT) and bool(_draw_lines(state, 80))
        super().show(state)

    def draw(self, state: Dashboard, width: int, height: int) -> Text:
        return stack_lines(*_draw_lines(state, width)[:height])


def _draw_lines(state: Dashboard, width: int) -> list[Text]:
    daemon = state.daemon
    if daemon is None:
        return []
    lines = []
    if daemon.latency:
        first = [(_name(one), one.first_token_s) for one in daemon.latency]
        each = [(_name(one), one.token_s) for one in daemon.latency if one.token_s is not None]
        lines.append(_draw_times("1st token", first, 1, "s", width))
        if each:
            lines.append(_draw_times("Next token", each, 1000, "ms", width))
    if hits := _draw_hits(daemon):
        lines.append(label_line("Cache hits", hits))
    return lines


def _name(latency: Latency) -> str:
    return _NAMES.get(latency.kind, latency.kind)


def _draw_times(
    label: str, times: list[tuple[str, tuple[float, float]]], scale: int, unit: str, width: int
) -> Text:
    """`chat 0.12, p90 0.4 s · search 0.3, p90 1.1 s`, as many as there is room for."""
    parts = [
        f"{name} {scale * half:.3g}, p90 {scale * most:.3g} {unit}" for name, (half, most) in times
    ]
    while len(parts) > 1 and 11 + len(" · ".join(parts)) > width:
        parts.pop()
    return label_line(label, " · ".join(parts))


def _draw_hits(daemon: DaemonStatus) -> str:
    engines = (("generator", daemon.generator), ("verifier", daemon.verifier))
    return "  ".join(f"{n[:3]} {e.cache_hits:.0%}" for n, e in engines if e.cache_hits is not None)
