"""Panels that scroll a text: the problem, the path of its answer, and the selected step."""

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from flashedge.client.run_figures import MctsFigures, is_mcts
from flashedge.client.run_view import NodeView, RunView
from flashedge.client.words import format_count
from flashedge.console import show_text
from flashedge.literal import show_in_line, show_literally
from flashedge.tui.colours import DIM, choose_score_colour
from flashedge.tui.state import Dashboard
from flashedge.tui.widgets.panel import COMPACT, SHORT, LiteralTitles
from flashedge.types import NodeId


class TextPanel(LiteralTitles, VerticalScroll, can_focus=True):
    """A panel whose text the arrow keys scroll while it has the focus."""

    def __init__(self, id: str, title: str = "") -> None:
        super().__init__(id=id)
        self.retitle(title)
        self._words = Static(id=f"{id}-text", markup=False)
        self._drawn: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        yield self._words

    def remember_drawn(self, *shown: object) -> bool:
        """Remember what is shown. Returns whether it differs from what the last call was given."""
        before, self._drawn = self._drawn, shown
        return before != shown


class ProblemPanel(TextPanel):
    """The shown run's problem. Without the focus a small terminal shows only its beginning."""

    def __init__(self) -> None:
        super().__init__("problem")
        self._problem = ""

    def show(self, state: Dashboard) -> None:
        if state.problem != self._problem:
            self._problem = state.problem
            self.scroll_home(animate=False)
        self._draw()

    def _draw(self) -> None:
        if not self.is_attached:
            return
        is_compact = self.screen.has_class(COMPACT)
        is_line = is_compact and self.screen.has_class(SHORT) and not self.has_focus
        if not self.remember_drawn(self._problem, is_compact, is_line, self.size.width):
            return
        problem = show_in_line(self._problem) if is_line else show_literally(self._problem.strip())
        text = Text("Problem    " if is_compact else "", style="bold")
        text.append(problem or "no run is chosen", "not bold" if problem else f"not bold {DIM}")
        if is_line:
            text.truncate(self.size.width, overflow="ellipsis")
        self._words.update(text)

    on_focus = on_resize = _draw

    def on_blur(self) -> None:
        self.scroll_home(animate=False)
        self._draw()


class SolutionPanel(TextPanel):
    """The text of the best path. Only large terminals have room for it."""

    def __init__(self) -> None:
        super().__init__("solution")

    def show(self, state: Dashboard) -> None:
        if not self.display:
            return
        run = state.shown or RunView()
        path = run.path(run.best)
        if not self.remember_drawn(run.id, path, run.over):
            return
        steps = "".join(run.nodes[node].text for node in path).strip()
        name = "The path of the answer" if run.over else "The best path so far"
        text = Text(f"{name}\n", style=f"bold {DIM}") if steps else Text()
        self._words.update(text.append(show_literally(steps), "not bold default"))


class StepPanel(TextPanel):
    """The text and the figures of the node that is selected in the tree."""

    def __init__(self) -> None:
        super().__init__("step", "Step")
        self.text = ""
        """The selected node's text, or only its end while it is generated. Empty without a node."""

    def show(self, state: Dashboard, selected: NodeId | None) -> None:
        run, prediction = state.shown, state.prediction
        node = run.nodes.get(selected) if run is not None and selected is not None else None
        if run is None or node is None:
            if self.remember_drawn(None):
                self.retitle("Step")
                self.text = ""
                self._words.update(Text("the selected node's text appears here", style=DIM))
            return
        growing, tail = run.growing.get(node.id), run.tails.get(node.id, "")
        if self.remember_drawn(node, growing, tail, run.rollouts, prediction):
            self.text = show_literally((node.text or tail).strip())
            self.retitle(f"Step: node {node.id} {node.mark} {node.status}, level {node.depth}")
            self._words.update(show_text(_describe(run, node, prediction)))


def _describe(run: RunView, node: NodeView, prediction: str) -> Text:
    text = Text()
    if node.score is not None:
        text.append(f"score {node.score:.3f}", style=f"bold {choose_score_colour(node.score)}")
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
        text.append(f" · {MctsFigures(run).describe(node)}")
    tail = run.tails.get(node.id)
    if node.text:
        return text.append(f"\n{show_literally(node.text.strip())}")
    return text.append(f"\n…{show_literally(tail)}", style=DIM) if tail else text


def _count_tokens(run: RunView, node: NodeId) -> int:
    return run.growing.get(node, run.nodes[node].tokens)
