"""KV memory of generator and verifier, and how it is split between them."""

from __future__ import annotations

from rich.text import Text

from flashedge.tui.state.dashboard import Dashboard
from flashedge.tui.state.scores import DIM, SCALE, WARNING, draw_meter
from flashedge.tui.state.summary import DaemonStatus, EngineStatus
from flashedge.tui.widgets.panel import Panel, format_bytes, label_line, stack_lines

_QUIET = 0.05
"""An engine that uses less of its KV memory than this part has little to show."""

_FULL = 0.8


class MemoryPanel(Panel):
    def __init__(self) -> None:
        super().__init__(id="memory")

    def is_quiet(self, state: Dashboard) -> bool:
        """Whether both engines are well and have room."""
        engines = _list_engines(state.daemon)
        return all(e.state == "ready" and _used(e) < _FULL for _, e in engines)

    def draw(self, state: Dashboard, width: int, height: int) -> Text:
        daemon = state.daemon
        if daemon is None:
            return label_line("KV", Text("unknown: no daemon", style=f"not bold {DIM}"))
        engines = _list_engines(daemon)
        idle = all(e.state == "ready" and _used(e) < _QUIET for _, e in engines)
        if height > 1 and not idle:
            return stack_lines(
                *(_draw_engine(name, engine, width) for name, engine in engines),
                label_line("KV split", _plain(_draw_split(daemon, max(width - 11 - 10, 4)))),
            )
        cells = 8 if width > 60 else 0
        parts = [_draw_briefly(name, engine, cells) for name, engine in engines]
        return label_line("KV", *(_plain(p) for p in parts), _plain(_draw_split(daemon, cells)))


def _list_engines(daemon: DaemonStatus | None) -> tuple[tuple[str, EngineStatus], ...]:
    if daemon is None:
        return ()
    return ("generator", daemon.generator), ("verifier", daemon.verifier)


def _draw_briefly(name: str, engine: EngineStatus, cells: int) -> Text:
    """`gen ███░░  44%`, without the bar where there are no cells for it."""
    if engine.state != "ready":
        return Text.assemble(f"{name[:3]} ", (f"{engine.state}  ", f"bold {WARNING}"))
    bar = Text.assemble(draw_meter(_used(engine), cells), " ") if cells else Text()
    return Text.assemble(f"{name[:3]} ", bar, f"{_used(engine):.0%}  ")


def _plain(text: Text) -> Text:
    return Text.assemble(text, style="not bold")


def _used(engine: EngineStatus) -> float:
    return engine.kv_used_bytes / engine.kv_quota_bytes if engine.kv_quota_bytes else 0.0


def _draw_engine(name: str, engine: EngineStatus, width: int) -> Text:
    label = f"KV {name[:3]}"
    if engine.state != "ready":
        return label_line(label, Text(engine.state, style=WARNING))
    figures = f" {_used(engine):>4.0%} of {format_bytes(engine.kv_quota_bytes)}"
    room = max(width - 11 - len(figures), 4)
    return label_line(label, _plain(draw_meter(_used(engine), room)), figures)


def _draw_split(daemon: DaemonStatus, width: int) -> Text:
    """`G███▒▒V 66:34`, or `split 66:34` in 0 cells: the generator's part and the verifier's."""
    share = daemon.generator_share
    if daemon.generator.owns_cards:
        return Text("each on its own cards", style=DIM)
    if share is None:
        return Text("split unknown", style=DIM)
    ratio = f" {share * 100:.0f}:{(1 - share) * 100:.0f}"
    if not width:
        return Text(f"split{ratio}")
    cells = round(share * width)
    text = Text("G", style="bold")
    text.append("█" * cells, style=SCALE[0])
    text.append("▒" * (width - cells), style=SCALE[-1])
    text.append("V", style="bold")
    return text.append(ratio)
