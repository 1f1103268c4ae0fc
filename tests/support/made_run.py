"""Builds a made-up run for tests: its events, its result and its row in a listing."""

from collections.abc import Mapping, Sequence
from typing import Any

from flashedge import events
from flashedge.events import Event
from flashedge.types import NodeId


def build_usage(**changes: Any) -> dict[str, Any]:
    """The `usage` of a result. `changes` replace single fields, here and below."""
    generated = {"prompt_tokens": 11, "completion_tokens": 20, "tree_tokens": 80}
    kept = {"drawn_tokens": 9, "kept_tokens": 5, "kept_steps": 2, "scored_steps": 1}
    verified = {"verifier_tokens": 120, "verifier_cached_tokens": 60, "probe_tokens": 0}
    return {**generated, "speculated_tokens": 4, "speculation": kept, **verified, **changes}


def build_result(**changes: Any) -> dict[str, Any]:
    """The object of a finished run. Its tree, completions and votes are empty."""
    return {
        "id": "run-1",
        "status": "finished",
        "pair": "bundled",
        "strategy": "beam",
        "n": 2,
        "seed": 0,
        "deterministic": True,
        "baseline": False,
        "answer": "2",
        "text": "1 + 1 = 2.\n\n\\boxed{2}",
        "choice": 2,
        "votes": [],
        "completions": [],
        "tree": {"root": 0, "nodes": []},
        "certainty": 1.0,
        "trusted": True,
        "cut_by": None,
        "usage": build_usage(),
        "timing": {"queue_s": 0.0, "generate_s": 0.1, "verify_s": 0.1, "total_s": 0.2},
        **changes,
    }


def build_row(result: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """The line of a listing about the finished run with this result."""
    return {
        **{name: result[name] for name in ("id", "status", "strategy", "n", "pair", "answer")},
        "created_at": 1.0,
        "finished_at": 2.0,
        "problem": "What is 12 + 7?",
        "tree_tokens": result["usage"]["tree_tokens"],
        "total_s": result["timing"]["total_s"],
        **changes,
    }


def build_step(
    node: int, text: str, *, tokens: int | None = None, finish: str = "boundary"
) -> events.StepCompleted:
    """The end of a step. tokens: how many it has; None gives each byte of the text one."""
    ids = tuple(text.encode()) if tokens is None else tuple(range(tokens))
    return events.StepCompleted(
        node=NodeId(node),
        token_ids=ids,
        logprobs=(-0.5,) * len(ids),
        text=text,
        steps=(text,),
        finish=finish,
    )


def build_score(node: int, score: float) -> events.NodeScored:
    return events.NodeScored(node=NodeId(node), scores=(score,), score=score)


def build_level(parent: int, depth: int, *nodes: int, seed: int = 5) -> events.NodesExpanded:
    children = tuple((NodeId(node), i, seed + i) for i, node in enumerate(nodes))
    return events.NodesExpanded(parent=NodeId(parent), depth=depth, children=children)


def build_start(
    config: Mapping[str, Any],
    steps: Sequence[tuple[str, float]],
    *,
    queue_s: float = 0.0,
    seed: int = 5,
    tokens: int | None = None,
) -> list[Event]:
    """The start of a run and its first level, to the scores of its nodes 1, 2, ….

    steps: text and score of each node. seed: of the first node. tokens: see `build_step`.
    """
    nodes = [NodeId(1 + i) for i in range(len(steps))]
    return [
        events.RunStarted(config=dict(config), queue_s=queue_s),
        build_level(0, 1, *nodes, seed=seed),
        events.Progress(tokens=tuple((node, 3 - i) for i, node in enumerate(nodes))),
        *(build_step(node, text, tokens=tokens) for node, (text, _) in enumerate(steps, 1)),
        *(build_score(node, score) for node, (_, score) in enumerate(steps, 1)),
    ]
