"""The level of a search, as far as its tree tells, and those of several searches together."""

from __future__ import annotations

from collections.abc import Iterable

from flashedge.scheduling.kv.stages import Workload
from flashedge.search.tree import Node, NodeStatus, Tree
from flashedge.types import Granularity

FIRST_STEP_TOKENS = 64  # of a step, before one is known


def load_of(tree: Tree, prompt_tokens: int, step: Granularity) -> Workload | None:
    """What is being generated now; None where nothing is. Steps are foreseen to be as long as the
    mean of those that the tree has; before there is one, a path to its end as half of its limit."""
    growing = [node for node in tree.nodes.values() if node.status is NodeStatus.GENERATING]
    if not growing:
        return None
    parents = {node.parent for node in growing if node.parent is not None}
    contexts = {parent: prompt_tokens + tree[parent].path_tokens for parent in parents}
    total = sum(contexts[n.parent] for n in growing if n.parent is not None)
    shared = {at.id: at for parent in parents for at in tree.path(parent)}
    live = prompt_tokens + sum(_tokens(node) for node in shared.values())
    steps = [_tokens(node) for node in tree.nodes.values() if node.segment is not None]
    first = step.max_tokens // 2 if step.to_end else FIRST_STEP_TOKENS
    mean = round(sum(steps) / len(steps)) if steps else first
    return _workload(len(growing), total, live, max(1, min(mean, step.max_tokens)))


def together(loads: Iterable[Workload]) -> Workload | None:
    """Of runs that share the engines and no KV; None of none."""
    found = list(loads)
    if not found:
        return None
    paths = sum(load.paths for load in found)
    return _workload(
        paths,
        sum(load.paths * load.context_tokens for load in found),
        sum(load.live_tokens for load in found),
        max(1, round(sum(load.paths * load.step_tokens for load in found) / paths)),
    )


def _workload(paths: int, total_tokens: int, live_tokens: int, step_tokens: int) -> Workload:
    context = total_tokens // paths
    return Workload(
        paths=paths,
        context_tokens=context,
        live_tokens=max(context, min(live_tokens, paths * context)),
        step_tokens=step_tokens,
    )


def _tokens(node: Node) -> int:
    return 0 if node.segment is None else len(node.segment.token_ids)
