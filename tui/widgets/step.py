"""The selected node: its figures and its whole text."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from flashedge.tui.state.node import MARKS, SeenNode
from flashedge.tui.state.run import RunState
from flashedge.tui.state.scores import DIM, colour
from flashedge.types import NodeId


class StepPanel(VerticalScroll, can_focus=True):
    def __init__(self) -> None:
        super().__init__(id="step")
        self.border_title = "Step"
        self._words = Static(id="step-text", markup=False)
        self._shown: tuple[SeenNode | None, int | None] = (None, None)

    def compose(self) -> ComposeResult:
        yield self._words

    def show(self, run: RunState | None, selected: NodeId | None) -> None:
        node = run.nodes.get(selected) if run is not None and selected is not None else None
        growing = run.growing.get(selected) if run is not None and selected is not None else None
        if (node, growing) == self._shown:
            return
        self._shown = (node, growing)
        self.border_title = "Step" if node is None else _title(node)
        self._words.update(_text(node, growing))


def _title(node: SeenNode) -> str:
    return f"Step: node {node.id} {MARKS.get(node.status, '?')} {node.status}, level {node.depth}"


def _text(node: SeenNode | None, growing: int | None) -> Text:
    if node is None:
        return Text("select a node to read its step", style=DIM)
    text = Text()
    if node.score is not None:
        text.append(f"score {node.score:.3f}", style=f"bold {colour(node.score)}")
        if len(node.scores) > 1:
            text.append(f" (steps {', '.join(f'{s:.2f}' for s in node.scores)})")
        text.append(" · ")
    tokens = growing if growing is not None else node.tokens
    text.append(f"{tokens} tokens")
    if node.finish:
        text.append(f" · ended by {node.finish}")
    return text.append(f"\n{node.text.strip()}" if node.text else "")
