"""Estimate the workload of the current level from a search's tree, and add up several searches."""

from __future__ import annotations

from collections.abc import Iterable

from flashedge.scheduling.kv.stages import Workload
from flashedge.search.tree import Node, NodeStatus, Tree
from flashedge.types import Granularity

FIRST_STEP_TOKENS = 64
"""Assumed length of a step before the tree has one."""


def estimate_load(tree: Tree, prompt_tokens: int, step: Granularity) -> Workload | None:
    """Describe what is being generated now. None if nothing is.

    A step is expected to be as long as the mean step of the tree. Before there is one, a path that
    is generated to its end is expected to take half of its limit.
    """
    growing = [node for node in tree.nodes.values() if node.status is NodeStatus.GENERATING]
    if not growing:
        return None
    parents = {node.parent for node in growing if node.parent is not None}
    contexts = {parent: prompt_tokens + tree[parent].path_tokens for parent in parents}
    total = sum(contexts[n.parent] for n in growing if n.parent is not None)
    ancestors = {at.id: at for parent in parents for at in tree.path(parent)}
    live = prompt_tokens + sum(_count_tokens(node) for node in ancestors.values())
    steps = [_count_tokens(node) for node in tree.nodes.values() if node.segment is not None]
    first = step.max_tokens // 2 if step.to_end else FIRST_STEP_TOKENS
    mean = round(sum(steps) / len(steps)) if steps else first
    return _build_workload(len(growing), total, live, max(1, min(mean, step.max_tokens)))


def combine_loads(loads: Iterable[Workload]) -> Workload | None:
    """Add up runs that share the engines but no KV. None if there is no run."""
    found = list(loads)
    if not found:
        return None
    paths = sum(load.paths for load in found)
    return _build_workload(
        paths,
        sum(load.paths * load.context_tokens for load in found),
        sum(load.live_tokens for load in found),
        max(1, round(sum(load.paths * load.step_tokens for load in found) / paths)),
    )


def _build_workload(paths: int, total_tokens: int, live_tokens: int, step_tokens: int) -> Workload:
    """`total_tokens` counts shared tokens once per path, `live_tokens` once in all."""
    context = total_tokens // paths
    return Workload(
        paths=paths,
        context_tokens=context,
        live_tokens=max(context, min(live_tokens, paths * context)),
        step_tokens=step_tokens,
    )


def _count_tokens(node: Node) -> int:
    return 0 if node.segment is None else len(node.segment.token_ids)
