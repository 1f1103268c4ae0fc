"""Builds the object of `solve --json` and `/v1/runs/{id}` from a search's outcome."""

from __future__ import annotations

from typing import Any

from flashedge.runtime.drive.driver import Outcome
from flashedge.runtime.request.spec import RunSpec
from flashedge.search.scoring import aggregate
from flashedge.search.tree import ROOT, Node, NodeStatus, Tree
from flashedge.types import Timing, Usage

TRUST_THRESHOLD = 0.5
"""Least score of the chosen path at which its answer counts as trusted by the verifier."""


def build_result(
    run_id: str,
    spec: RunSpec,
    outcome: Outcome,
    usage: Usage,
    timing: Timing,
    *,
    deterministic: bool | None = None,
) -> dict[str, Any]:
    """Build the result as plain JSON values. `score` is a path's aggregate (`spec.aggregate`), the
    `step_scores` are the verifier's.

    deterministic: whether the run's tree depends on nothing but its request, as the start-up
    self-test found it for the generator's kernels. None when that is not known.
    """
    tree, finish = outcome.tree, outcome.finish
    complete = [n for n in tree.nodes.values() if n.status is NodeStatus.COMPLETE]
    return {
        "id": run_id,
        "status": "finished",
        "pair": spec.pair,
        "strategy": spec.strategy,
        "n": spec.n,
        "seed": spec.seed,
        "deterministic": deterministic,
        "baseline": spec.baseline,
        "answer": finish.answer,
        "text": tree.path_text(finish.choice),
        "choice": finish.choice,
        "votes": [{"answer": v.answer, "weight": v.weight, "count": v.count} for v in finish.votes],
        "completions": [_completion(tree, node, spec) for node in complete],
        "tree": {"root": ROOT, "nodes": [_node(tree, n, spec) for n in tree.nodes.values()]},
        "certainty": outcome.certainty,
        "trusted": _is_trusted(outcome, spec),
        "cut_by": outcome.cut_by,
        "early_exit_source": spec.early_exit_source,
        "early_exit_note": spec.early_exit_note,
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "tree_tokens": usage.tree_tokens,
            "speculated_tokens": usage.speculation.wasted_tokens,
            "speculation": {
                "drawn_tokens": usage.speculation.drawn_tokens,
                "kept_tokens": usage.speculation.kept_tokens,
                "kept_steps": usage.speculation.kept_steps,
                "scored_steps": usage.speculation.scored_steps,
            },
            "verifier_tokens": usage.verifier_tokens,
            "verifier_cached_tokens": usage.verifier_cached_tokens,
            "probe_tokens": usage.probe_tokens,
        },
        "timing": {
            "queue_s": timing.queue_s,
            "generate_s": timing.generate_s,
            "verify_s": timing.verify_s,
            "total_s": timing.total_s,
        },
    }


def _is_trusted(outcome: Outcome, spec: RunSpec) -> bool | None:
    """Whether the verifier scores the answer's path at least TRUST_THRESHOLD.

    None without an answer, and for a strategy without a verifier.
    """
    scores = outcome.tree.path_scores(outcome.finish.choice)
    if outcome.finish.answer is None or not scores:
        return None
    return aggregate(scores, spec.aggregate) >= TRUST_THRESHOLD


def _completion(tree: Tree, node: Node, spec: RunSpec) -> dict[str, Any]:
    assert node.segment is not None, "a complete node was generated"
    scores = tree.path_scores(node.id)
    return {
        "node": node.id,
        "text": tree.path_text(node.id),
        "token_ids": list(tree.path_token_ids(node.id)),
        "step_scores": list(scores),
        "score": aggregate(scores, spec.aggregate) if scores else None,
        "answer": node.answer,
        "finish_reason": str(node.segment.finish),
    }


def _node(tree: Tree, node: Node, spec: RunSpec) -> dict[str, Any]:
    segment = node.segment
    scores = tree.path_scores(node.id) if node.scores is not None else ()
    return {
        "id": node.id,
        "parent": node.parent,
        "depth": node.depth,
        "tokens": len(segment.token_ids) if segment else 0,
        "token_ids": list(segment.token_ids) if segment else [],
        "text": segment.text if segment else "",
        "score": aggregate(scores, spec.aggregate) if scores else None,
        "status": str(node.status),
    }
