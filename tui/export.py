"""A run's tree as a file: JSON to compute with, SVG to look at."""

import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

from flashedge.client.run_figures import compute_child_priors, compute_rollout_values, is_mcts
from flashedge.client.run_view import CUT, DROPPED, MARKS, MEANINGS, ROOT, NodeView, RunView
from flashedge.client.words import describe_distrust, format_count
from flashedge.literal import escape_page, format_json, show_in_line
from flashedge.tui.colours import choose_score_colour
from flashedge.tui.widgets.panel import shorten
from flashedge.types import NodeId

_COLUMN, _ROW, _MARGIN, _BOX_W, _BOX_H = 270, 22, 16, 234, 16  # pixels
_LINE, _CHARACTER = 16, 6.7  # height of a line and width of a character at font size 11
_BOX_CHARACTERS = int((_BOX_W - 10) / _CHARACTER)
_WRAP = 110  # characters in a line of the best path's text
Places = Mapping[NodeId, tuple[float, float]]
_LEGEND = (
    ", ".join(f"{mark} {status}" for status, mark in MARKS.items()),
    f"{MARKS[CUT]} {CUT}, box dashed: {MEANINGS[CUT]}",
    "a box: mark, score of the path and the step's text; the tooltip has the whole text",
    "colour: blue a low score, yellow a high one; thick line: the best path; dashed line: dropped",
)
_FIELDS = {
    "score": "score of the whole path down to the node, in [0, 1]",
    "scores": "scores of the node's own steps",
    "best": "whether the node is on the best path",
    "cut": f"whether the path was {MEANINGS[CUT]}",
    "answer": "the answer that the path ends with, as written",
    "visits": "MCTS: rollouts through the node",
    "value": "MCTS: mean value of those rollouts",
    "prior": "MCTS: prior of the node among its siblings",
}


def write_tree(run: RunView, target: Path) -> None:
    """Write JSON to a name that ends with .json, SVG to any other. Raises OSError."""
    text = to_json(run) if target.suffix == ".json" else to_svg(run)
    target.write_text(text, encoding="utf-8")


def to_json(run: RunView) -> str:
    best = frozenset(run.path(run.best))
    values = compute_rollout_values(run)
    tree = {
        "run": run.id,
        "state": run.state,
        "answer": (run.result or {}).get("answer"),
        "trusted": (run.result or {}).get("trusted"),
        "unlikely": run.is_unlikely,
        "tokens": run.tokens,
        "config": dict(run.config),
        "legend": {"marks": dict(MARKS), "fields": _FIELDS},
        "nodes": [_describe_node(run, n, n.id in best, values) for n in run.nodes.values()],
    }
    return format_json(tree, indent=1)


def _describe_node(
    run: RunView, node: NodeView, best: bool, values: Mapping[NodeId, tuple[int, float]]
) -> dict[str, object]:
    names = ("id", "parent", "depth", "status", "tokens", "score")
    data = {name: getattr(node, name) for name in names}
    data |= {"scores": list(node.scores), "cut": node.kind == CUT}
    data |= {"answer": node.answer, "text": node.text, "best": best}
    if is_mcts(run) and node.parent is not None:
        visits, value = values.get(node.id, (0, None))
        prior = compute_child_priors(run, node.parent).get(node.id)
        data |= {"visits": visits, "value": value, "prior": prior}
    return data


def to_svg(run: RunView) -> str:
    """Draw the levels from left to right, the legend above them, the best path's text below."""
    places = _place_nodes(run)
    best = frozenset(run.path(run.best))
    steps = list(_list_best_path(run))
    answer = (run.result or {}).get("answer")
    title = f"run {run.id} · {run.state} · {run.tokens:,} tokens"
    titles = [title if answer is None else f"{title} · answer {answer}"]
    titles += [describe_distrust()] if run.is_distrusted else []
    above = [*titles, *_LEGEND]
    top = _MARGIN + _LINE * (len(above) + 1)
    right, low = (max(ends) for ends in zip(*places.values(), strict=True))
    bottom = int(top + low) + _ROW + _LINE
    widest = int(max(map(len, (*above, *steps))) * _CHARACTER)
    width = _MARGIN + max(int(right) + _BOX_W, _MARGIN + widest)
    height = bottom + _LINE * (len(steps) + 1) + _MARGIN
    head = [
        _draw_text(_MARGIN, _MARGIN + 4 + _LINE * i, line, bold=i < len(titles))
        for i, line in enumerate(above)
    ]
    drawn = [n for n in run.nodes.values() if n.id in places]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
            f' viewBox="0 0 {width} {height}" font-family="monospace" font-size="11">',
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            *head,
            f'<g transform="translate(0 {top})">',
            *(_draw_edge(places, n, n.id in best) for n in drawn if n.parent is not None),
            *(_draw_box(places, n, n.id in best) for n in drawn),
            "</g>",
            *(_draw_text(_MARGIN, bottom + _LINE * (i + 1), t) for i, t in enumerate(steps)),
            "</svg>\n",
        ]
    )


def _draw_text(x: int, y: int, text: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ' fill="#555555"'
    return f'<text x="{x}" y="{y}" xml:space="preserve"{weight}>{escape_page(text)}</text>'


def _list_best_path(run: RunView) -> Iterator[str]:
    """List the steps of the best path, each with its level and score, wrapped at `_WRAP`."""
    path = [run.nodes[n] for n in run.path(run.best)]
    if path:
        yield "The best path:"
    for node in path:
        score = "    " if node.score is None else f"{node.score:.2f}"
        lead = f"{node.depth:>3} {score}  "
        for line in node.text.strip().splitlines() or [""]:
            for part in textwrap.wrap(line, _WRAP) or [""]:
                yield lead + part
                lead = " " * len(lead)


def _place_nodes(run: RunView) -> Places:
    """Give each leaf a row of its own, and each parent the middle of its children's rows."""
    order, stack = list[NodeId](), [ROOT]
    while stack:
        order.append(stack.pop())
        stack.extend(reversed(run.children.get(order[-1], ())))
    leaves = (node for node in order if not run.children.get(node))
    rows = {node: float(row) for row, node in enumerate(leaves)}
    for node in reversed(order):
        if below := run.children.get(node):
            rows[node] = (rows[below[0]] + rows[below[-1]]) / 2
    return {n: (_MARGIN + run.nodes[n].depth * _COLUMN, row * _ROW) for n, row in rows.items()}


def _draw_edge(places: Places, node: NodeView, best: bool) -> str:
    assert node.parent is not None
    (x0, y0), (x1, y1) = places[node.parent], places[node.id]
    x0, y0, y1 = x0 + _BOX_W, y0 + _BOX_H / 2, y1 + _BOX_H / 2
    middle = (x0 + x1) / 2
    style = 'stroke="#000000" stroke-width="2.5"' if best else 'stroke="#b0b0b0"'
    dash = ' stroke-dasharray="3 3"' if node.status in DROPPED else ""
    curve = f"M{x0:g} {y0:g} C{middle:g} {y0:g} {middle:g} {y1:g} {x1:g} {y1:g}"
    return f'<path d="{curve}" fill="none" {style}{dash}/>'


def _draw_box(places: Places, node: NodeView, best: bool) -> str:
    x, y = places[node.id]
    fill = "#ffffff" if node.score is None else choose_score_colour(node.score)
    line = 'stroke="#000000" stroke-width="2"' if best else 'stroke="#777777"'
    faded = ' opacity="0.55"' if node.status in DROPPED else ""
    line += ' stroke-dasharray="4 3"' if node.kind == CUT else ""
    tip = escape_page(
        f"node {node.id}: {node.status}, {format_count(node.tokens, 'token')}\n{node.text.strip()}"
    )
    score = "" if node.score is None else f" {node.score:.2f}"
    label = shorten(f"{node.mark}{score} {show_in_line(node.text)}", _BOX_CHARACTERS)
    label = "root" if node.id == ROOT else label
    return (
        f"<g{faded}><title>{tip}</title>"
        f'<rect x="{x:g}" y="{y:g}" width="{_BOX_W}" height="{_BOX_H}"'
        f' rx="3" fill="{fill}" {line}/>'
        f'<text x="{x + 5:g}" y="{y + 12:g}">{escape_page(label)}</text></g>'
    )
