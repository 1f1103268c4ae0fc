"""KV memory of generator and verifier, and how it is split between them."""

from __future__ import annotations

from rich.text import Text

from flashedge.tui.state.dashboard import Dashboard
from flashedge.tui.state.scores import DIM, SCALE, meter
from flashedge.tui.state.summary import DaemonLook, EngineLook
from flashedge.tui.widgets.panel import Panel, labelled, lines, size_text


class MemoryPanel(Panel):
    title = "KV memory"

    def __init__(self) -> None:
        super().__init__(id="memory")

    def draw(self, state: Dashboard, width: int, height: int) -> Text:
        look = state.look
        if look is None:
            unknown = Text("unknown: no daemon", style=f"not bold {DIM}")
            return labelled("KV" if height < 2 else "", unknown)
        if height < 2:
            parts = [
                Text.assemble(f"{name} ", meter(_used(e), 8), f" {_used(e):>4.0%}  ")
                for name, e in (("gen", look.generator), ("ver", look.verifier))
            ]
            return labelled("KV", *(_plain(p) for p in parts), _plain(_split(look, 8)))
        return lines(
            _engine("generator", look.generator, width),
            _engine("verifier", look.verifier, width),
            labelled("split", _plain(_split(look, max(width - 11 - 10, 4)))),
        )


def _plain(text: Text) -> Text:
    return Text.assemble(text, style="not bold")


def _used(engine: EngineLook) -> float:
    return engine.kv_used_bytes / engine.kv_quota_bytes if engine.kv_quota_bytes else 0.0


def _engine(name: str, engine: EngineLook, width: int) -> Text:
    said = f" {_used(engine):>4.0%} of {size_text(engine.kv_quota_bytes)}"
    if engine.state != "ready":
        said = f" {engine.state}"
    room = max(width - 11 - 18, 4)
    return labelled(name, _plain(meter(_used(engine), room)), said)


def _split(look: DaemonLook, width: int) -> Text:
    """`G███VV 66:34`: the generator's part and the verifier's."""
    share = look.generator_share
    if share is None:
        return Text("no split known", style=DIM)
    cells = round(share * width)
    text = Text("G", style="bold")
    text.append("█" * cells, style=SCALE[0])
    text.append("▒" * (width - cells), style=SCALE[-1])
    text.append("V", style="bold")
    return text.append(f" {share * 100:.0f}:{(1 - share) * 100:.0f}")
