"""The selected node: its figures and its whole text."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from flashedge.client.node_view import NodeView
from flashedge.client.run_figures import (
    child_priors,
    flights_through,
    is_mcts,
    mcts_figures,
    rollout_values,
)
from flashedge.client.run_view import RunView
from flashedge.client.words import format_count
from flashedge.console import show_text
from flashedge.literal import show_in_line, show_literally
from flashedge.tui.state.scores import DIM, score_colour
from flashedge.tui.widgets.literal import LiteralTitles
from flashedge.types import NodeId


class StepPanel(LiteralTitles, VerticalScroll, can_focus=True):
    def __init__(self) -> None:
        super().__init__(id="step")
        self.border_title = "Step"
        self._words = Static(id="step-text", markup=False)
        self._shown: tuple[object, ...] = ()
        self.text = ""
        """The marked node's text, as it is shown. Empty without a node."""

    def compose(self) -> ComposeResult:
        yield self._words

    def show(self, run: RunView | None, selected: NodeId | None, prediction: str = "") -> None:
        """prediction: how long a path of the run will be, in words."""
        node = run.nodes.get(selected) if run is not None and selected is not None else None
        if run is None or node is None:
            shown: tuple[object, ...] = (None,)
        else:
            growing, tail = run.growing.get(node.id), run.tails.get(node.id)
            shown = (node, growing, tail, run.rollouts, prediction)
        if shown == self._shown:
            return
        self._shown = shown
        if run is None or node is None:
            self.border_title, self.text = "Step", ""
            self._words.update(Text("the marked node's text stands here", style=DIM))
            return
        self.text = show_literally((node.text or run.tails.get(node.id, "")).strip())
        self.border_title = f"Step: node {node.id} {node.mark} {node.status}, level {node.depth}"
        self._words.update(show_text(_describe(run, node, prediction)))


def _describe(run: RunView, node: NodeView, prediction: str) -> Text:
    text = Text()
    if node.score is not None:
        text.append(f"score {node.score:.3f}", style=f"bold {score_colour(node.score)}")
        if len(node.scores) > 1:
            text.append(f" (steps {', '.join(f'{s:.2f}' for s in node.scores)})")
        text.append(" · ")
    text.append(format_count(_count_tokens(run, node.id), "token"))
    if prediction:
        drawn = sum(_count_tokens(run, part) for part in run.path(node.id))
        text.append(f" · path {drawn:,} (predicted {prediction})")
    if node.finish:
        text.append(f" · ended by {show_in_line(node.finish)}")
    if node.answer is not None:
        text.append(f" · answer {show_in_line(node.answer)}", style="bold")
    if is_mcts(run) and run.rollouts and node.parent is not None:
        priors = child_priors(run, node.parent)
        text.append(f" · {mcts_figures(node, rollout_values(run), priors, flights_through(run))}")
    tail = run.tails.get(node.id)
    if node.text:
        return text.append(f"\n{show_literally(node.text.strip())}")
    return text.append(f"\n…{show_literally(tail)}", style=DIM) if tail else text


def _count_tokens(run: RunView, node: NodeId) -> int:
    return run.growing.get(node, run.nodes[node].tokens)
