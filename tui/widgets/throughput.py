"""Tokens and goodput per second."""

from __future__ import annotations

from rich.text import Text

from flashedge.tui.state.dashboard import Dashboard
from flashedge.tui.state.scores import DIM, SCALE, draw_sparkline
from flashedge.tui.widgets.panel import Panel, label_line, stack_lines


class RatePanel(Panel):
    """Goodput: tokens per second of nodes that the searches keep."""

    def __init__(self) -> None:
        super().__init__(id="rates")

    def draw(self, state: Dashboard, width: int, height: int) -> Text:
        rates, now = state.rates, state.current_rate
        generated, kept = (
            (f"{now.tokens_per_s:,.0f}", f"{now.goodput_per_s:,.0f}") if now else ("–", "–")
        )
        if height > 1 and now is None and not any(r.tokens_per_s for r in rates):
            return label_line("Tokens/s", Text("–", style=f"not bold {DIM}"))
        if height < 2:
            room = max(width - 11 - 34, 0)
            history = draw_sparkline([r.tokens_per_s for r in rates], room)
            figures = f"{generated:>7}  goodput {kept:>7}  "
            return label_line("Tokens/s", figures, Text(history, style=SCALE[0]))
        room = max(width - 11 - 8, 1)
        top = max((r.tokens_per_s for r in rates), default=0.0)
        drawn = draw_sparkline([r.tokens_per_s for r in rates], room, top)
        useful = draw_sparkline([r.goodput_per_s for r in rates], room, top)
        return stack_lines(
            label_line("Tokens/s", f"{generated:>7} ", Text(drawn, style=SCALE[0])),
            label_line("Goodput", f"{kept:>7} ", Text(useful, style=SCALE[-1])),
        )
