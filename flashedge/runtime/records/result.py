"""Builds the object of `solve --json` and `/v1/runs/{id}` from a search's outcome."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from flashedge.runtime.drive.driver import DEADLINE, Outcome
from flashedge.runtime.request.plan import Plan, is_boosted
from flashedge.runtime.request.validation import Request
from flashedge.runtime.thinking import NO_THINKING, Thinking
from flashedge.search.aggregates import aggregate
from flashedge.search.tree import ROOT, Node, NodeStatus, Tree
from flashedge.types import Timing, Usage

TRUST_THRESHOLD = 0.5
"""Least score of the chosen path at which its answer counts as trusted by the verifier. As a
probability it says that the answer is more likely right than wrong."""


def build_result(
    run_id: str,
    plan: Plan,
    outcome: Outcome,
    usage: Usage,
    timing: Timing,
    *,
    self_test: Mapping[str, Any] | None = None,
    thinking: Thinking = NO_THINKING,
    scores_probability: bool = True,
    num_failed_comparisons: int = 0,
) -> dict[str, Any]:
    """Build the result as plain JSON values. `score` is the aggregate of a path's `step_scores`.

    self_test: what the self-test found. See `engine.vllm.batch_invariance`.
    scores_probability: False where the verifier's scores only rank, so that none can be trusted.
    num_failed_comparisons: comparisons of answers, of any run, that failed or took too long while
    this run went on. Whether those answers count as equal then depends on the load.
    """
    request, tree, finish = plan.request, outcome.tree, outcome.finish
    reasoning, text = thinking.split(tree.path_text(finish.choice))
    complete = [n for n in tree.nodes.values() if n.status is NodeStatus.COMPLETE]
    return {
        "id": run_id,
        "status": "finished",
        "pair": request.pair,
        "strategy": request.strategy,
        "n": request.n,
        "seed": request.seed,
        "deterministic": _is_deterministic(
            request, outcome, usage.prompt_tokens, self_test, num_failed_comparisons
        ),
        "fingerprint": (self_test or {}).get("fingerprint") if request.deterministic else None,
        "baseline": request.baseline,
        "answer": finish.answer,
        "text": text,
        "reasoning": reasoning,
        "choice": finish.choice,
        "votes": [asdict(vote) for vote in finish.votes],
        "completions": [_build_completion(tree, node, request, thinking) for node in complete],
        "tree": {
            "root": ROOT,
            "nodes": [build_node(tree, n, request) for n in tree.nodes.values()],
        },
        "certainty": outcome.certainty,
        "trusted": _is_trusted(outcome, request) if scores_probability else None,
        "cut_by": outcome.cut_by,
        "unlikely": finish.unlikely,
        "unboxed": finish.unboxed,
        "early_exit_source": plan.early_exit_source,
        "early_exit_note": plan.early_exit_note,
        "usage": {**asdict(usage), "speculated_tokens": usage.speculation.wasted_tokens},
        "timing": asdict(timing),
    }


def _is_deterministic(
    request: Request,
    outcome: Outcome,
    prompt_tokens: int,
    self_test: Mapping[str, Any] | None,
    num_failed_comparisons: int,
) -> bool | None:
    """Whether repeating the request gives the same tree under any load. False where that is not
    sure, None where the self-test has no verdict."""
    if is_boosted(request) or num_failed_comparisons:
        return False
    if request.deterministic:
        return True
    found = self_test or {}
    if not found.get("batch_invariant"):
        return found.get("batch_invariant")
    longest = prompt_tokens + max(node.path_tokens for node in outcome.tree.nodes.values())
    # The kernels were found batch-invariant up to this length.
    is_covered = longest <= found.get("invariant_tokens", 0)
    in_order = request.options.get("take") != "arrival" or request.options.get("parallel", 1) == 1
    return is_covered and in_order and outcome.cut_by != DEADLINE


def _is_trusted(outcome: Outcome, request: Request) -> bool | None:
    """Whether the chosen path scores at least TRUST_THRESHOLD. None without an answer, and for a
    strategy without a verifier."""
    scores = outcome.tree.path_scores(outcome.finish.choice)
    if outcome.finish.answer is None or not scores:
        return None
    return aggregate(scores, request.aggregate) >= TRUST_THRESHOLD


def _build_completion(
    tree: Tree, node: Node, request: Request, thinking: Thinking
) -> dict[str, Any]:
    assert node.segment is not None, "a complete node was generated"
    reasoning, text = thinking.split(tree.path_text(node.id))
    scores = tree.path_scores(node.id)
    return {
        "node": node.id,
        "text": text,
        "reasoning": reasoning,
        "token_ids": list(tree.path_token_ids(node.id)),
        "step_scores": list(scores),
        "score": aggregate(scores, request.aggregate) if scores else None,
        "confidence": node.confidence,
        "answer": node.answer,
        "finish_reason": str(node.segment.finish),
    }


def build_node(tree: Tree, node: Node, request: Request) -> dict[str, Any]:
    """Describe a node of the tree as plain JSON values."""
    segment = node.segment
    token_ids = list(segment.token_ids) if segment else []
    scores = tree.path_scores(node.id) if node.scores is not None else ()
    return {
        "id": node.id,
        "parent": node.parent,
        "depth": node.depth,
        "tokens": len(token_ids),
        "token_ids": token_ids,
        "text": segment.text if segment else "",
        "score": aggregate(scores, request.aggregate) if scores else None,
        "status": str(node.status),
    }
