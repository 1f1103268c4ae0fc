"""KV memory of generator and verifier, and how it is split between them."""

from __future__ import annotations

from rich.text import Text

from flashedge.tui.state.dashboard import Dashboard
from flashedge.tui.state.scores import DIM, SCALE, draw_meter
from flashedge.tui.state.summary import DaemonStatus, EngineStatus
from flashedge.tui.widgets.panel import Panel, format_bytes, label_line, stack_lines


class MemoryPanel(Panel):
    title = "KV memory"

    def __init__(self) -> None:
        super().__init__(id="memory")

    def draw(self, state: Dashboard, width: int, height: int) -> Text:
        daemon = state.daemon
        if daemon is None:
            unknown = Text("unknown: no daemon", style=f"not bold {DIM}")
            return label_line("KV" if height < 2 else "", unknown)
        if height < 2:
            parts = [
                Text.assemble(f"{name} ", draw_meter(_used(e), 8), f" {_used(e):>4.0%}  ")
                for name, e in (("gen", daemon.generator), ("ver", daemon.verifier))
            ]
            return label_line("KV", *(_plain(p) for p in parts), _plain(_draw_split(daemon, 8)))
        return stack_lines(
            _draw_engine("generator", daemon.generator, width),
            _draw_engine("verifier", daemon.verifier, width),
            label_line("split", _plain(_draw_split(daemon, max(width - 11 - 10, 4)))),
        )


def _plain(text: Text) -> Text:
    return Text.assemble(text, style="not bold")


def _used(engine: EngineStatus) -> float:
    return engine.kv_used_bytes / engine.kv_quota_bytes if engine.kv_quota_bytes else 0.0


def _draw_engine(name: str, engine: EngineStatus, width: int) -> Text:
    figures = f" {_used(engine):>4.0%} of {format_bytes(engine.kv_quota_bytes)}"
    if engine.state != "ready":
        figures = f" {engine.state}"
    room = max(width - 11 - 18, 4)
    return label_line(name, _plain(draw_meter(_used(engine), room)), figures)


def _draw_split(daemon: DaemonStatus, width: int) -> Text:
    """`G███▒▒V 66:34`: the generator's part and the verifier's."""
    share = daemon.generator_share
    if daemon.generator.owns_cards:
        return Text("each on its own cards", style=DIM)
    if share is None:
        return Text("split unknown", style=DIM)
    cells = round(share * width)
    text = Text("G", style="bold")
    text.append("█" * cells, style=SCALE[0])
    text.append("▒" * (width - cells), style=SCALE[-1])
    text.append("V", style="bold")
    return text.append(f" {share * 100:.0f}:{(1 - share) * 100:.0f}")
