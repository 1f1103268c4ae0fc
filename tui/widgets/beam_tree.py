"""The tree of the shown run: scores, marks, best path, step text; follow, collapse, filter."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType

from flashedge.tui.state.node import DROPPED, MARKS, SeenNode
from flashedge.tui.state.run import RunState
from flashedge.tui.state.scores import DIM, SCALE, score_text
from flashedge.tui.tree_lines import TreeLine, tree_lines
from flashedge.tui.widgets.lines import LineList
from flashedge.types import NodeId

BEST = "★"
FOLLOW_FRAMES = 4


class BeamTree(LineList):
    """The cursor stays on its node while lines come and go around it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space,enter", "switch", "Collapse", show=False),
        Binding("left", "fold(True)", "Collapse", show=False),
        Binding("right", "fold(False)", "Expand", show=False),
        Binding("b", "best", "Best path", show=False),
    ]
    empty = "no tree yet"

    def __init__(self) -> None:
        super().__init__(id="tree")
        self.border_title = "Tree"
        self.filter = ""
        self.following = True
        self.dropped = True
        self._run: RunState | None = None
        self._lines: tuple[TreeLine, ...] = ()
        self._places: dict[NodeId, int] = {}
        self._collapsed: frozenset[NodeId] = frozenset()
        self._best: frozenset[NodeId] = frozenset()
        self._shape: tuple[object, ...] = ()
        self._frames = FOLLOW_FRAMES

    @property
    def count(self) -> int:
        return len(self._lines)

    @property
    def selected(self) -> NodeId | None:
        return self._lines[self.cursor].node if self.cursor < len(self._lines) else None

    # ------------------------------------------------------------ drawing

    def show(self, run: RunState | None) -> None:
        if run is self._run:
            return
        if run is None or self._run is None or run.id != self._run.id or run.seq < self._run.seq:
            self._collapsed = frozenset()
            self.following = True
        self._run = run
        self.draw()

    def draw(self) -> None:
        """Lay the lines out anew if the tree's shape changed, and draw what is seen."""
        run, selected = self._run, self.selected
        if run is None:
            self._lines, self._places, self._shape = (), {}, ()
            self._title()
            self.update_lines()
            return
        self._best = frozenset(run.path(run.best))
        texts = run.nodes if self.filter or not self.dropped else None
        shape = (run.children, texts, self._collapsed, self.dropped, self.filter)
        if not _same(shape, self._shape):
            self._shape = shape
            self._lines = tree_lines(
                run, collapsed=self._collapsed, dropped=self.dropped, wanted=self.filter
            )
            self._places = {line.node: i for i, line in enumerate(self._lines)}
        self.update_lines()
        place = self._places.get(selected) if selected is not None else None
        if place is not None and place != self.cursor:
            self.cursor = place  # the same node, wherever its line is now
            if not self.following:
                self.put_cursor(place)
        self._title()

    def follow(self) -> None:
        """Go to where following leads; called every frame, it moves in every FOLLOW_FRAMES-th.

        Each move draws the whole panel anew: more often is no easier to read, and slow over ssh.
        """
        self._frames += 1
        if not self.following or self._run is None or self._frames < FOLLOW_FRAMES:
            return
        target = self._target(self._run)
        if target is not None and (target != self.selected or not self.in_sight):
            self._frames = 0
            self.put_cursor(self._places[target], centre=True)
            self._title()

    def _target(self, run: RunState) -> NodeId | None:
        """Where following leads: the newest node, at the end the best path."""
        node = run.best if run.over else run.latest
        while node is not None and node not in self._places:
            node = run.nodes[node].parent
        return node

    def _title(self) -> None:
        run = self._run
        said = ["Tree"] if run is None else [f"Tree {run.id}"]
        if run is not None:
            said.append(run.state)
            answer = (run.result or {}).get("answer")
            said += [f"answer {answer}"] if answer is not None else []
        said += [f"/{self.filter}"] if self.filter else []
        said += ["follow"] if self.following else []
        said += [] if self.dropped else ["pruned hidden"]
        said += [f"{self.cursor + 1}/{len(self._lines)}"] if self._lines else []
        self.border_title = " · ".join(said)

    def line(self, index: int, width: int) -> Text:
        assert self._run is not None, "lines are those of a run"
        line = self._lines[index]
        node = self._run.nodes[line.node]
        best = line.node in self._best
        text = Text()
        text.append(BEST if best else " ", style=f"bold {SCALE[-1]}")
        text.append(line.lead, style=DIM)
        dim = node.status in DROPPED
        style = "bold" if best else DIM if dim else ""
        text.append(f"{MARKS.get(node.status, '?')} ", style=style)
        score = score_text(node.score)
        if dim:
            score.stylize("dim")
        text.append_text(score)
        if line.hidden:
            text.append(f" [+{line.hidden}]", style="bold")
        text.append(f" {self._what(node)}", style=style)
        text.truncate(width, overflow="ellipsis")
        return text

    def _what(self, node: SeenNode) -> str:
        assert self._run is not None
        if node.text:
            return " ".join(node.text.split())
        tokens = self._run.growing.get(node.id, node.tokens)
        if node.status == "generating":
            return f"{tokens} tokens so far" if tokens else "generating"
        return f"{tokens} tokens"

    # ------------------------------------------------------------ keys

    def set_filter(self, wanted: str) -> None:
        self.filter = wanted
        self.draw()

    def toggle_follow(self) -> None:
        self.following = not self.following
        self._frames = FOLLOW_FRAMES
        self.follow()
        self._title()

    def toggle_dropped(self) -> None:
        self.dropped = not self.dropped
        self.draw()

    def _go(self, index: int) -> None:
        self.following = False
        super()._go(index)
        self._title()

    def action_switch(self) -> None:
        self.action_fold(self.selected not in self._collapsed)

    def action_fold(self, shut: bool) -> None:
        """Collapse the selected node, or its parent when it has nothing below; or expand it."""
        node, run = self.selected, self._run
        if node is None or run is None:
            return
        self.following = False
        if shut and not run.children.get(node):
            node = run.nodes[node].parent or node
            if node in self._places:
                self.put_cursor(self._places[node])
        self._collapsed = self._collapsed | {node} if shut else self._collapsed - {node}
        self.draw()

    def action_best(self) -> None:
        best = self._run.best if self._run is not None else None
        if best in self._places:
            self._go(self._places[best])


def _same(shape: tuple[object, ...], other: tuple[object, ...]) -> bool:
    """Whether lines laid out for one are those of the other; tables are compared by identity."""
    if len(shape) != len(other):
        return False
    return all(a is b for a, b in zip(shape[:2], other[:2], strict=True)) and shape[2:] == other[2:]
