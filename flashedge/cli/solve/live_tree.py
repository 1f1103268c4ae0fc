"""A tree view as something rich can print, cut to the height of the terminal."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from rich.console import Group, RenderableType
from rich.text import Text

from flashedge.cli.solve.tree_view import ROOT, SeenNode, TreeView
from flashedge.types import NodeId

GLYPHS: Mapping[str, tuple[str, str]] = {
    "generating": ("…", "cyan"),
    "generated": ("·", "cyan"),
    "active": ("●", "white"),
    "pruned": ("✗", "dim"),
    "duplicate": ("≡", "dim"),
    "complete": ("✓", "green"),
    "cancelled": ("–", "dim"),
}
_MIN_TREE_LINES = 4


def render(
    view: TreeView, *, width: int = 100, height: int | None = None, whole: bool = False
) -> RenderableType:
    """The status line and below it the tree.

    height: lines at most (None: no bound); whole: a line for each node that was pruned, where
    else one line counts those of a parent.
    """
    lines = list(_lines(view, width, whole))
    if height is not None and len(lines) > max(height - 1, _MIN_TREE_LINES):
        kept = max(height - 2, _MIN_TREE_LINES)
        left_off = len(lines) - kept
        lines = [Text(f"  … {left_off} lines above", style="dim"), *lines[left_off:]]
    return Group(status_line(view), *lines)


def status_line(view: TreeView) -> Text:
    if view.state == "waiting":
        before = f", {view.position} before it" if view.position else ""
        return Text(f"waiting for its turn{before}", style="yellow")
    parts = [
        view.note,
        f"{view.complete} complete",
        f"{view.alive} growing" if view.state == "running" else None,
        f"{view.tokens:,} tokens",
        None if view.certainty is None else f"certainty {view.certainty:.2f}",
    ]
    style = {"running": "bold cyan", "finished": "bold green"}.get(view.state, "bold red")
    line = Text(f"{view.state}  ", style=style, no_wrap=True, overflow="ellipsis")
    return line.append(" · ".join(p for p in parts if p), style="default")


def _lines(view: TreeView, width: int, whole: bool) -> Iterator[Text]:
    children: dict[NodeId, list[SeenNode]] = defaultdict(list)
    for node in view.nodes.values():
        if node.parent is not None:
            children[node.parent].append(node)
    chosen = view.chosen
    stack: list[tuple[SeenNode, str, bool]] = []

    def push(parent: NodeId, indent: str) -> Iterator[Text]:
        """Queue the children worth a line; one line for all that ended without children."""
        shown: list[SeenNode] = []
        ended: list[SeenNode] = []
        for child in children[parent]:
            dead = child.status in ("pruned", "duplicate", "cancelled") and not children[child.id]
            (ended if dead and not whole else shown).append(child)
        if ended:
            yield _ended_line(ended, indent, last=not shown)
        for place, child in enumerate(reversed(shown)):
            stack.append((child, indent, place == 0))

    yield from push(ROOT, "")
    while stack:
        node, indent, last = stack.pop()
        yield _node_line(node, indent + ("└─" if last else "├─"), width, node.id in chosen)
        only = len(children[node.id]) == 1 and last
        yield from push(node.id, indent if only else indent + ("  " if last else "│ "))


def _node_line(node: SeenNode, lead: str, width: int, chosen: bool) -> Text:
    glyph, style = GLYPHS.get(node.status, ("?", "red"))
    line = Text(lead, style="dim", no_wrap=True, overflow="ellipsis")
    line.append(f"{glyph} ", style="bold green" if chosen else style)
    line.append(_bar(node.score) if node.score is not None else "       ")
    what = " ".join(node.text.split()) or f"{node.tokens} tokens"
    room = max(width - len(line.plain) - 2, 10)
    cut = what if len(what) <= room else f"{what[: room - 1]}…"
    return line.append(f" {cut}", style="bold" if chosen else style)


def _ended_line(nodes: list[SeenNode], indent: str, last: bool) -> Text:
    scores = sorted(n.score for n in nodes if n.score is not None)
    counts = Counter(node.status for node in nodes)
    said = ", ".join(f"{count} {status}" for status, count in counts.items())
    if scores:
        said += f" ({scores[0]:.2f}" + (f" to {scores[-1]:.2f})" if len(scores) > 1 else ")")
    return Text(f"{indent}{'└─' if last else '├─'}✗ {said}", style="dim", no_wrap=True)


def _bar(score: float) -> Text:
    """A score as a coloured number with a small bar."""
    style = "green" if score >= 0.7 else "yellow" if score >= 0.4 else "red"
    eighths = " ▏▎▍▌▋▊▉█"
    filled = min(max(score, 0.0), 1.0) * 2
    cells = "".join(eighths[round(min(max(filled - i, 0.0), 1.0) * 8)] for i in range(2))
    return Text(f"{score:.2f} {cells}", style=style)
