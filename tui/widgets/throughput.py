"""Tokens and goodput a second."""

from __future__ import annotations

from rich.text import Text

from flashedge.tui.state.dashboard import Dashboard
from flashedge.tui.state.scores import SCALE, spark
from flashedge.tui.widgets.panel import Panel, labelled, lines


class RatePanel(Panel):
    """Goodput: tokens a second of nodes that the searches keep."""

    title = "Tokens a second"

    def __init__(self) -> None:
        super().__init__(id="rates")

    def draw(self, state: Dashboard, width: int, height: int) -> Text:
        rates = state.rates
        now = rates[-1] if rates else None
        made, kept = (now.tokens_per_s, now.goodput_per_s) if now else (0.0, 0.0)
        if height < 2:
            room = max(width - 11 - 34, 0)
            history = Text(spark([r.tokens_per_s for r in rates], room), style=SCALE[0])
            return labelled("Tokens/s", f"{made:>7,.0f}  goodput {kept:>7,.0f}  ", history)
        room = max(width - 11 - 8, 1)
        top = max((r.tokens_per_s for r in rates), default=0.0)
        return lines(
            labelled(
                "generated",
                f"{made:>7,.0f} ",
                Text(spark([r.tokens_per_s for r in rates], room, top), style=SCALE[0]),
            ),
            labelled(
                "goodput",
                f"{kept:>7,.0f} ",
                Text(spark([r.goodput_per_s for r in rates], room, top), style=SCALE[-1]),
            ),
        )
