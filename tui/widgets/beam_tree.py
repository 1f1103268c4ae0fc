"""The tree of the shown run: levels, scores, marks, best path, step text."""

import re
from collections.abc import Hashable
from functools import partial
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType

from flashedge.client.run_figures import MctsFigures
from flashedge.client.run_view import CUT, DROPPED, NodeView, RunView
from flashedge.client.tree_lines import TreeLine, build_tree_lines
from flashedge.client.words import format_count
from flashedge.literal import show_in_line
from flashedge.tui.colours import DIM, SCALE, draw_score
from flashedge.tui.state import Dashboard
from flashedge.tui.widgets.lines import LineList
from flashedge.types import NodeId

BEST = "★"
FOLLOW_FRAMES = 4
"""Frames between two moves to the followed node, and between two layouts for new texts. Chosen by
hand: at each frame the panel would scroll too fast to be read."""

_NO_RUN = RunView()
_LEAST_TAIL = 12
"""Least cells for the end of a growing node's text. Fewer would not hold two words."""


def find_group_key(run: RunView, node: NodeView) -> Hashable:
    """The key by which siblings share a line: their text, even while it grows, or CUT for those cut
    before they had one. A node whose key is None has its own line."""
    if node.status == "generating":
        return run.tails.get(node.id), run.growing.get(node.id)
    return node.text.strip() or (CUT if node.status == CUT else None)


class BeamTree(LineList):
    """The shown run's tree. The cursor stays on its node while lines come and go around it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space,enter", "switch", "Collapse", show=False),
        Binding("left", "fold(True)", "Collapse", show=False),
        Binding("right", "fold(False)", "Expand", show=False),
        Binding("b", "best", "Best path", show=False),
        Binding("n", "match(1)", "Next match", show=False),
        Binding("N", "match(-1)", "Previous match", show=False),
    ]

    def __init__(self) -> None:
        super().__init__(id="tree")
        self.retitle("Tree")
        self.filter = ""
        self.following = True
        self.shows_dropped = True
        self._run = _NO_RUN
        self.items: tuple[TreeLine, ...] = ()
        self._places: dict[NodeId, int] = {}
        self._matches: tuple[int, ...] = ()
        """Indices of the lines that match the filter."""

        self._collapsed: frozenset[NodeId] = frozenset()
        self._best: frozenset[NodeId] = frozenset()
        self._figures: MctsFigures | None = None
        self._shape: tuple[object, ...] = (None,)
        """What decided the lines at the last layout: children, collapsed, dropped, filter."""

        self._texts: tuple[object, object] = ({}, {})
        """Nodes and tails at the last layout."""

        self._frames = self._layout_frames = FOLLOW_FRAMES
        """Frames since the last move to the followed node, and since the last layout."""

        self._selected: NodeId | None = None

    @property
    def empty(self) -> str:
        if self.filter:
            return f"nothing matches /{self.filter}"
        ended = "no tree: the run ended before its first step"
        return ended if self._run.over else "no tree yet"

    @property
    def selected(self) -> NodeId | None:
        """The cursor's node. On a line of several nodes it is the one that was selected before."""
        if self.cursor >= len(self.items):
            return None
        line = self.items[self.cursor]
        return self._selected if self._selected in line.members else line.node

    def show(self, state: Dashboard) -> None:
        run = state.shown or _NO_RUN
        if run is self._run:
            return
        if run.id != self._run.id or run.seq < self._run.seq:
            self._collapsed = frozenset()
            self.following = True
        self._run = run
        self.draw()

    def draw(self) -> None:
        """Draw the visible lines, after a new layout if the tree's shape or its texts have changed
        (`_has_new_texts`). Texts count because siblings with one text share a line."""
        run, selected = self._run, self.selected
        self._selected = selected
        self._best = frozenset(run.path(run.best))
        self._figures = MctsFigures(run) if run.rollouts else None
        shape = (run.children, self._collapsed, self.shows_dropped, self.filter)
        is_same = shape[0] is self._shape[0] and shape[1:] == self._shape[1:]
        if not is_same or self._has_new_texts:
            self._shape, self._texts, self._layout_frames = shape, (run.nodes, run.tails), 0
            self.items = build_tree_lines(
                run,
                collapsed=self._collapsed,
                hidden=frozenset() if self.shows_dropped else DROPPED,
                wanted=self.filter,
                group=partial(find_group_key, run),
            )
            self._places = {m: i for i, line in enumerate(self.items) for m in line.members}
            self._matches = tuple(i for i, line in enumerate(self.items) if line.is_match)
        self.update_lines()
        place = self._places.get(selected) if selected is not None else None
        if place is not None and place != self.cursor:
            self.cursor = place  # the same node, wherever its line is now
            if not self.following:
                self.put_cursor(place)
        self._show_title()

    def follow(self) -> None:
        """Move to the followed node every FOLLOW_FRAMES-th frame: each move redraws the whole
        panel, which is slow over ssh."""
        self._frames += 1
        self._layout_frames += 1
        if self._has_new_texts:
            self.draw()
        if not self.following or self._frames < FOLLOW_FRAMES:
            return
        target = self._find_target()
        if target is not None and (target != self.selected or not self.is_in_sight):
            self._frames = 0
            self._selected = target
            self.put_cursor(self._places[target], centre=True)
            self._show_title()

    @property
    def _has_new_texts(self) -> bool:
        """Whether texts have changed since the last layout, FOLLOW_FRAMES frames ago or more."""
        nodes, tails = self._texts
        is_new = self._run.nodes is not nodes or self._run.tails is not tails
        return is_new and self._layout_frames >= FOLLOW_FRAMES

    def _find_target(self) -> NodeId | None:
        """Find the followed node: the newest one, or once the run is over, the best path's end."""
        run = self._run
        node = run.best if run.over else run.latest
        while node is not None and node not in self._places:
            node = run.nodes[node].parent
        return node

    def _show_title(self) -> None:
        parts = ["Tree"]
        if self.filter:
            parts.append(f"/{self.filter}")
        if self._matches:
            at = sum(i <= self.cursor for i in self._matches)
            parts.append(f"match {at} of {len(self._matches)}, n next, N back")
        parts += ["follow"] if self.following else []
        parts += [] if self.shows_dropped else ["pruned hidden"]
        parts += [f"{self.cursor + 1}/{len(self.items)}"] if self.items else []
        self.retitle(" · ".join(parts))

    def draw_line(self, index: int, width: int) -> Text:
        line = self.items[index]
        node = self._run.nodes[line.node]
        is_best = not self._best.isdisjoint(line.members)
        text = Text()
        text.append(f"{node.depth:>3}", style=DIM)
        text.append(BEST if is_best else " ", style=f"bold {SCALE[-1]}")
        text.append(line.lead, style=DIM)
        is_dropped = node.status in DROPPED
        style = "bold" if is_best else DIM if is_dropped else ""
        text.append(f"{node.mark} ", style=style)
        figures = draw_score(node.score)
        if self._figures is not None:
            figures.append(f" {self._figures.describe(node)}")
        text.append_text(Text.assemble(figures, style="dim" if is_dropped else ""))
        if len(line.members) > 1:
            text.append(f" ×{len(line.members)}", style="bold")
        if line.hidden:
            text.append(f" [+{line.hidden}]", style="bold")
        if node.ends_path and node.answer is not None:
            text.append(f" → {show_in_line(node.answer)}", style="bold")
        begin = len(text)
        text.append(f" {self._describe(node, width - len(text) - 1)}", style=style)
        if line.is_match and (pattern := re.escape(show_in_line(self.filter))):
            for match in re.finditer(pattern, text.plain[begin:], re.IGNORECASE):
                text.stylize("reverse", begin + match.start(), begin + match.end())
        text.truncate(width, overflow="ellipsis")
        return text

    def _describe(self, node: NodeView, room: int) -> str:
        """The node's text; while it grows, its tokens and the end of its text."""
        if node.text:
            return show_in_line(node.text)
        if node.status == CUT:
            return "cut before its end"
        if node.status != "generating":
            return format_count(node.tokens, "token")
        count = self._run.growing.get(node.id)
        tokens = format_count(count, "token") if count else "generating"
        tail = show_in_line(self._run.tails.get(node.id, ""))
        left = room - len(tokens) - 2
        return f"{tokens} …{tail[-left:]}" if tail and left > _LEAST_TAIL else tokens

    def set_filter(self, wanted: str) -> None:
        """List the nodes that match, with their ancestors, and go to the first match."""
        self.filter = wanted
        self.following = self.following and not wanted
        self.draw()
        if self._matches and self.cursor not in self._matches:
            self._go(self._matches[0])

    def action_match(self, by: int) -> None:
        if self._matches:
            before = [i for i in self._matches if i < self.cursor] or self._matches
            after = [i for i in self._matches if i > self.cursor] or self._matches
            self._go(after[0] if by > 0 else before[-1])

    def set_following(self, on: bool) -> None:
        self.following = on
        self._frames = FOLLOW_FRAMES
        self.follow()
        self._show_title()

    def toggle_dropped(self) -> None:
        self.shows_dropped = not self.shows_dropped
        self.draw()

    def _go(self, index: int) -> None:
        self.following = False
        self._selected = None
        super()._go(index)
        self._show_title()

    def action_switch(self) -> None:
        self.action_fold(self.selected not in self._collapsed)

    def action_fold(self, shut: bool) -> None:
        """shut: collapse the selected node, or its parent if it has no children. Else expand it."""
        node, run = self.selected, self._run
        if node is None:
            return
        self.following = False
        if shut and not run.children.get(node):
            node = run.nodes[node].parent or node  # the root, 0, has no line
            if node in self._places:
                self.put_cursor(self._places[node])
        self._collapsed = self._collapsed | {node} if shut else self._collapsed - {node}
        self.draw()

    def action_best(self) -> None:
        best = self._run.best
        if best in self._places:
            self._go(self._places[best])
            self._selected = best
