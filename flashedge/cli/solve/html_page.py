"""A run as one HTML page. It has no scripts and loads nothing; <details> elements fold the tree."""

from collections.abc import Iterator, Mapping
from typing import Any

from flashedge.client.run_view import DROPPED, MARKS, MEANINGS, ROOT, NodeView, RunView
from flashedge.client.words import format_count, list_doubts
from flashedge.literal import escape_page
from flashedge.types import NodeId

_CSS = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.25rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
pre { font: 13px/1.5 ui-monospace, monospace; white-space: pre-wrap; margin: .3rem 0; }
.box { border: 1px solid #8888; border-radius: .4rem; padding: .5rem .8rem; }
table { border-collapse: collapse; } td, th { padding: .1rem 1rem .1rem 0; text-align: left; }
details, .leaf { margin-left: 1.1rem; border-left: 1px solid #8886; padding-left: .5rem; }
summary { cursor: pointer; }
.line { font: 13px/1.6 ui-monospace, monospace; }
.bar { display: inline-block; width: 4rem; height: .6em; border: 1px solid #8888; }
.bar i { display: block; height: 100%; background: #4f78bd; }
.warning { border-left: 4px solid #c8811a; padding-left: .6rem; font-weight: bold; }
.line.pruned { text-decoration: line-through #8888; }
.line.cut, .line.cancelled { border-bottom: 2px dashed #c8811a; }
.line.duplicate { font-style: italic; }
.legend { margin-right: 1.2rem; }
.dropped { opacity: .6; } .best > .line, .best > summary { font-weight: bold; }
"""


def render_page(view: RunView, found: Mapping[str, Any], problem: str) -> str:
    """The page of a run. view: the fold of its events. found: its object. problem: its text."""
    title = escape_page(f"FlashEdge run {found.get('id')}")
    parts = (
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title><style>{_CSS}</style></head><body>",
        f"<h1>{title}</h1>",
        f'<pre class="box">{escape_page(problem)}</pre>',
        *(f'<p class="warning">{escape_page(doubt)}</p>' for doubt in list_doubts(found)),
        *_render_figures(view, found),
        *_render_votes(found),
        *_render_best_path(view),
        "<h2>Tree</h2>",
        *_render_legend(view),
        *_render_tree(view),
        "</body></html>\n",
    )
    return "\n".join(parts)


def _render_figures(view: RunView, found: Mapping[str, Any]) -> Iterator[str]:
    timing = found.get("timing") or {}
    certainty = found.get("certainty")
    error = found.get("error") or {}
    rows = {
        "answer": found.get("answer"),
        "status": found.get("status"),
        "search": f"{found.get('strategy')}-{found.get('n')}, seed {found.get('seed')}",
        "pair": found.get("pair"),
        "certainty": None if certainty is None else f"{certainty:.3f}",
        "ended early by": found.get("cut_by"),
        "tokens of the tree": f"{view.tokens:,}",
        "seconds": f"{timing['total_s']:.2f}" if timing.get("total_s") is not None else None,
        "error": error.get("message") if isinstance(error, Mapping) else error,
    }
    yield "<table>"
    for name, value in rows.items():
        if value is not None:
            yield f"<tr><th>{name}</th><td>{escape_page(str(value))}</td></tr>"
    yield "</table>"


def _render_votes(found: Mapping[str, Any]) -> Iterator[str]:
    votes = found.get("votes") or []
    if len(votes) < 2:
        return
    yield "<h2>Votes</h2><table><tr><th>answer</th><th>paths</th><th>weight</th></tr>"
    for vote in votes:
        answer, count, weight = escape_page(str(vote["answer"])), vote["count"], vote["weight"]
        yield f"<tr><td>{answer}</td><td>{count}</td><td>{weight:.2f}</td></tr>"
    yield "</table>"


def _render_best_path(view: RunView) -> Iterator[str]:
    choice = (view.result or {}).get("choice")
    if not isinstance(choice, int):
        return
    yield "<h2>Best path</h2><table><tr><th>score</th><th>step</th></tr>"
    for node in (view.nodes[n] for n in view.path(NodeId(choice))):
        score = "" if node.score is None else f"{node.score:.2f}"
        yield f"<tr><td>{score}</td><td><pre>{escape_page(node.text.strip())}</pre></td></tr>"
    yield "</table>"


def _render_legend(view: RunView) -> Iterator[str]:
    """The marks that the tree has, each drawn like its nodes."""
    kinds = {node.kind for node in view.nodes.values() if node.id != ROOT}
    marks = [
        f'<span class="legend"><span class="line {kind}">{mark} {kind}</span>:'
        f" {escape_page(MEANINGS[kind])}</span>"
        for kind, mark in MARKS.items()
        if kind in kinds
    ]
    yield f"<p>{' '.join(marks)} ★ on the best path.</p>"
    yield "<p>Click a line to open or close what is below it.</p>"


def _render_tree(view: RunView) -> Iterator[str]:
    """Nested <details>. Those of nodes that the search dropped are closed."""
    chosen = view.chosen

    def list_children(node: NodeId) -> list[NodeView | str]:
        return [view.nodes[child] for child in view.children.get(node, ())]

    stack = list_children(ROOT)[::-1]  # nodes to draw, and end tags
    while stack:
        node = stack.pop()
        if isinstance(node, str):
            yield node
            continue
        below = list_children(node.id)
        kinds = ["best"] if node.id in chosen else []
        kinds += ["dropped"] if node.status in DROPPED else []
        line = _render_line(node, node.id in chosen)
        if not below:
            yield f'<div class="{" ".join(["leaf", *kinds])}">{line}</div>'
            continue
        opened = "" if node.status in DROPPED else " open"
        yield f'<details class="{" ".join(kinds)}"{opened}><summary>{line}</summary>'
        stack.append("</details>")
        stack.extend(reversed(below))


def _render_line(node: NodeView, is_best: bool) -> str:
    star = "★ " if is_best else ""
    score = ""
    if node.score is not None:
        part = min(max(node.score, 0.0), 1.0)
        score = f'{node.score:.2f} <span class="bar"><i style="width:{part:.0%}"></i></span> '
    text = escape_page(node.text.strip()) or format_count(node.tokens, "token")
    title = escape_page(f"node {node.id}, {node.status}, {format_count(node.tokens, 'token')}")
    return f'<span class="line {node.kind}" title="{title}">{star}{node.mark} {score}{text}</span>'
