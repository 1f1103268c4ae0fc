"""A run's tree as a file: JSON to compute with, SVG to look at. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape

from flashedge.tui.state.node import DROPPED, MARKS, ROOT, SeenNode
from flashedge.tui.state.run import RunState
from flashedge.tui.state.scores import SCALE
from flashedge.types import NodeId

_COLUMN, _ROW, _MARGIN, _BOX_W, _BOX_H = 118, 22, 16, 78, 16
_TOP = 46


def to_json(run: RunState) -> str:
    """The tree, what it was asked and what came out; `best` marks the chosen path."""
    best = frozenset(run.path(run.best))
    tree = {
        "run": run.id,
        "state": run.state,
        "answer": (run.result or {}).get("answer"),
        "tokens": run.tokens,
        "config": dict(run.config),
        "nodes": [_node(n, n.id in best) for n in run.nodes.values()],
    }
    return json.dumps(tree, ensure_ascii=False, indent=1)


def _node(node: SeenNode, best: bool) -> dict[str, object]:
    return {
        "id": node.id,
        "parent": node.parent,
        "depth": node.depth,
        "status": node.status,
        "tokens": node.tokens,
        "score": node.score,
        "scores": list(node.scores),
        "text": node.text,
        "best": best,
    }


def to_svg(run: RunState) -> str:
    """Levels from left to right. A box holds mark and score; its tooltip the step's text."""
    rows = _rows(run)
    best = frozenset(run.path(run.best))
    width = _MARGIN * 2 + _COLUMN * run.depth + _BOX_W
    height = _TOP + _MARGIN + _ROW * (int(max(rows.values(), default=0)) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" font-family="monospace" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{_MARGIN}" y="18" font-weight="bold">{escape(_title(run))}</text>',
        f'<text x="{_MARGIN}" y="34" fill="#555555">{escape(_legend())}</text>',
    ]
    drawn = [n for n in run.nodes.values() if n.id in rows]
    parts += [_edge(run, rows, n, n.id in best) for n in drawn if n.parent is not None]
    parts += [_box(rows, n, n.id in best) for n in drawn]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _title(run: RunState) -> str:
    answer = (run.result or {}).get("answer")
    said = f"run {run.id} · {run.state} · {run.tokens:,} tokens"
    return said + (f" · answer {answer}" if answer is not None else "")


def _legend() -> str:
    marks = ", ".join(f"{mark} {status}" for status, mark in MARKS.items())
    return f"{marks}; the thick line is the best path"


def _rows(run: RunState) -> Mapping[NodeId, float]:
    """Each leaf a row of its own, a parent in the middle of its children."""
    rows: dict[NodeId, float] = {}
    free = 0.0
    stack: list[tuple[NodeId, bool]] = [(ROOT, False)]
    while stack:
        node, placed_below = stack.pop()
        below = run.children.get(node, ())
        if not below:
            rows[node] = free
            free += 1
        elif placed_below:
            rows[node] = (rows[below[0]] + rows[below[-1]]) / 2
        else:
            stack.append((node, True))
            stack.extend((c, False) for c in reversed(below))
    return rows


def _place(rows: Mapping[NodeId, float], node: SeenNode) -> tuple[float, float]:
    return _MARGIN + node.depth * _COLUMN, _TOP + rows[node.id] * _ROW


def _edge(run: RunState, rows: Mapping[NodeId, float], node: SeenNode, best: bool) -> str:
    assert node.parent is not None
    x0, y0 = _place(rows, run.nodes[node.parent])
    x1, y1 = _place(rows, node)
    x0, y0, y1 = x0 + _BOX_W, y0 + _BOX_H / 2, y1 + _BOX_H / 2
    middle = (x0 + x1) / 2
    style = 'stroke="#000000" stroke-width="2.5"' if best else 'stroke="#b0b0b0"'
    dash = ' stroke-dasharray="3 3"' if node.status in DROPPED else ""
    curve = f"M{x0:g} {y0:g} C{middle:g} {y0:g} {middle:g} {y1:g} {x1:g} {y1:g}"
    return f'<path d="{curve}" fill="none" {style}{dash}/>'


def _box(rows: Mapping[NodeId, float], node: SeenNode, best: bool) -> str:
    x, y = _place(rows, node)
    fill = "#ffffff" if node.score is None else _paper_colour(node.score)
    line = 'stroke="#000000" stroke-width="2"' if best else 'stroke="#777777"'
    faded = ' opacity="0.55"' if node.status in DROPPED else ""
    score = "" if node.score is None else f" {node.score:.2f}"
    said = "root" if node.id == ROOT else f"{MARKS.get(node.status, '?')}{score}"
    tip = escape(f"node {node.id}: {node.status}, {node.tokens} tokens\n{node.text.strip()}")
    return (
        f"<g{faded}><title>{tip}</title>"
        f'<rect x="{x:g}" y="{y:g}" width="{_BOX_W}" height="{_BOX_H}"'
        f' rx="3" fill="{fill}" {line}/>'
        f'<text x="{x + 5:g}" y="{y + 12:g}">{escape(said)}</text></g>'
    )


def _paper_colour(score: float) -> str:
    return SCALE[min(int(min(max(score, 0.0), 1.0) * len(SCALE)), len(SCALE) - 1)]
