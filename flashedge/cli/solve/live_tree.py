"""A run's tree as something rich can print, cut to the height of the terminal."""

from collections import Counter
from collections.abc import Hashable, Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from flashedge.client import run_figures
from flashedge.client.run_view import DROPPED, MARKS, NodeView, RunView
from flashedge.client.tree_lines import TreeLine, build_tree_lines
from flashedge.client.words import describe_wait, format_count
from flashedge.literal import show_in_line

STYLES = {"generating": "cyan", "generated": "cyan", "active": "white", "complete": "green"}
_BLOCKS = " ▁▂▃▄▅▆▇█"
_MIN_TREE_LINES = 4
"""Lines of the tree that are shown even without room for them. Fewer would not show a branch."""
_LEVELS_SHOWN = 16
"""Most levels whose scores are drawn: the last ones, as many as fit into 80 columns."""


def render(
    view: RunView,
    *,
    width: int = 100,
    height: int | None = None,
    every_node: bool = False,
    depth: int | None = None,
    with_tree: bool = True,
    elapsed_s: float | None = None,
) -> RenderableType:
    """The status lines, and below them the tree if `with_tree`.

    height: most lines. every_node: a line for each node that has tokens; else siblings of one text
    share a line, and so do those that the search dropped. depth: most levels. elapsed_s: since the
    run started, for its speed.
    """
    head = [_draw_status(view, elapsed_s), *_draw_scores(view)]
    if view.state == "running" and view.note:  # a run that is over has it in its first line
        note = Text(show_in_line(view.note), style="yellow", no_wrap=True, overflow="ellipsis")
        head.append(note)
    if not with_tree:
        return Group(*head)
    lines = list(_draw_tree(view, width, every_node, depth))
    if height is not None and len(lines) > max(height - len(head), _MIN_TREE_LINES):
        kept = max(height - len(head) - 1, _MIN_TREE_LINES)
        left_off = len(lines) - kept
        lines = [Text(f"  … {left_off} lines above", style="dim"), *lines[left_off:]]
    return Group(*head, *lines)


def _draw_status(view: RunView, elapsed_s: float | None = None) -> Text:
    if view.state == "waiting":
        known = describe_wait(view.position, view.starts_in_s)
        return Text(f"waiting in the queue{known and ', '}{known}", style="yellow")
    cut = view.paths_cut
    parts: list[str | None] = [show_in_line(view.note or ""), f"{view.paths_done - cut} complete"]
    parts.append(f"{cut} cut before an answer" if cut else None)
    parts.append(run_figures.describe_flights(view) or None)
    if view.state == "running":
        parts = [run_figures.describe_progress(view)]
    parts.append(f"{view.all_tokens:,} tokens")
    if view.state == "running" and elapsed_s:
        parts.append(f"{view.all_tokens / elapsed_s:,.0f}/s")
        parts += [run_figures.format_seconds(elapsed_s), run_figures.describe_rest(view, elapsed_s)]
    if view.certainty and view.certainty[-1].certainty is not None:
        certainty = f"certainty {view.certainty[-1].certainty:.2f}"
        parts.append("low verifier score" if view.is_distrusted else certainty)
    parts.append("an unlikely answer" if view.is_unlikely else None)
    style = {"running": "bold cyan", "finished": "bold green"}.get(view.state, "bold red")
    line = Text(f"{view.state}  ", style=style, no_wrap=True, overflow="ellipsis")
    return line.append(" · ".join(p for p in parts if p), style="default")


def _draw_scores(view: RunView) -> list[Text]:
    """The best and the mean score of the last levels, while a run of several levels goes on."""
    levels = run_figures.tally_levels(view)
    if view.state != "running" or not levels or (len(levels) < 2 and view.level < 2):
        return []
    line = Text("scores   ", style="dim", no_wrap=True, overflow="ellipsis")
    for name, values in (("best", [s.best for s in levels]), ("mean", [s.mean for s in levels])):
        blocks = "".join(_BLOCKS[max(1, round(_clamp(v) * 8))] for v in values[-_LEVELS_SHOWN:])
        line.append(f"{name} {blocks} {values[-1]:.2f}  ")
    return [line.append(f"at level {levels[-1].depth}")]


def _clamp(value: float) -> float:
    return min(max(value, 0.0), 1.0)


def _draw_tree(view: RunView, width: int, every_node: bool, depth: int | None) -> Iterator[Text]:
    def is_dropped(node: NodeView) -> bool:
        return node.status in DROPPED and not (every_node and node.tokens)

    def group(node: NodeView) -> Hashable:
        """What the nodes of a line have in common. A duplicate joins the sibling with its text."""
        kept = _find_kept_twin(view, node)
        if is_dropped(node) and (every_node or kept is None or is_dropped(kept)):
            return "dropped"
        text = node.text.strip()
        return ((kept or node).status, text) if text and not every_node else None

    deepest = {n.id for n in view.nodes.values() if depth is not None and n.depth >= depth}
    chosen = view.chosen
    figures = run_figures.MctsFigures(view) if run_figures.is_mcts(view) and view.rollouts else None
    for line in build_tree_lines(view, group=group, collapsed=frozenset(deepest)):
        node = view.nodes[line.node]
        if is_dropped(node) and not view.children.get(node.id):
            yield _draw_dropped(view, line)
        else:
            is_chosen = not chosen.isdisjoint(line.members)
            yield _draw_node(view, line, width, is_chosen, figures)


def _find_kept_twin(view: RunView, node: NodeView) -> NodeView | None:
    """The sibling whose text a duplicate has. None for other nodes."""
    if node.status != "duplicate" or node.parent is None:
        return None
    siblings = (view.nodes[n] for n in view.children[node.parent])
    text = node.text.strip()
    return next((s for s in siblings if s.status != "duplicate" and s.text.strip() == text), None)


def _draw_node(
    view: RunView,
    line: TreeLine,
    width: int,
    is_chosen: bool,
    figures: run_figures.MctsFigures | None,
) -> Text:
    node = view.nodes[line.node]
    style = STYLES.get(node.status, "dim")
    text = Text(line.lead, style="dim", no_wrap=True, overflow="ellipsis")
    text.append(f"{node.mark} ", style="bold green" if is_chosen else style)
    text.append(_draw_bar(node.score) if node.score is not None else " " * 7)  # as wide as a bar
    if figures is not None:
        text.append(f" {figures.describe(node)}", style="dim")
    if len(line.members) > 1:
        text.append(f" ×{len(line.members)}", style="bold")
    if line.hidden:
        text.append(f" +{format_count(line.hidden, 'node')} below", style="dim")
    if node.ends_path and node.answer is not None:
        text.append(f" → {show_in_line(node.answer)}", style="bold green" if is_chosen else "bold")
    room = max(width - len(text.plain) - 2, 10)
    return text.append(f" {_shorten_text(view, node, room)}", style="bold" if is_chosen else style)


def _shorten_text(view: RunView, node: NodeView, room: int) -> str:
    """The node's text cut to `room` characters. While it grows, its tokens and the text's end."""
    if node.text:
        words = show_in_line(node.text)
        return words if len(words) <= room else f"{words[: room - 1]}…"
    if node.status == "generating":
        count = view.growing.get(node.id)
        tokens = format_count(count, "token") if count else "generating"
        tail = show_in_line(view.tails.get(node.id, ""))
        left = room - len(tokens) - 3
        return f"{tokens} …{tail[-left:]}" if tail and left > 8 else tokens  # room for a word
    return format_count(node.tokens, "token")


def _draw_dropped(view: RunView, line: TreeLine) -> Text:
    """`✗ 3 pruned, 1 duplicate (0.12 to 0.31)`: nodes that were dropped, and their scores."""
    nodes = [view.nodes[n] for n in line.members]
    scores = sorted(n.score for n in nodes if n.score is not None)
    counts = Counter(sorted((node.status for node in nodes), key=list(MARKS).index))
    text = ", ".join(f"{count} {status}" for status, count in counts.items())
    if scores:
        low, high = f"{scores[0]:.2f}", f"{scores[-1]:.2f}"
        text += f" ({low})" if low == high else f" ({low} to {high})"
    mark = MARKS[nodes[0].status] if len(counts) == 1 else MARKS["pruned"]
    return Text(f"{line.lead}{mark} {text}", style="dim", no_wrap=True)


def _draw_bar(score: float) -> Text:
    """A score as a coloured number with a small bar. The limits of the colours are chosen by hand:
    much lower or higher ones would give nearly all nodes of a tree one colour."""
    style = "green" if score >= 0.7 else "yellow" if score >= 0.4 else "red"
    eighths = " ▏▎▍▌▋▊▉█"
    filled = _clamp(score) * 2
    cells = "".join(eighths[round(min(max(filled - i, 0.0), 1.0) * 8)] for i in range(2))
    return Text(f"{score:.2f} {cells}", style=style)
