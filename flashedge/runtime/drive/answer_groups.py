"""Which finished paths say the same: boxed answers by mathematics, open-ended ones by likeness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flashedge.answers.extraction import extract_answer
from flashedge.runtime.drive.engines import Engines
from flashedge.search.tree import Tree
from flashedge.types import NodeId

ANSWERS = ("boxed", "text")


async def grouped(
    nodes: Sequence[NodeId], tree: Tree, answers: str, engines: Engines
) -> Mapping[NodeId, str | None]:
    """Each node's cluster, as the answer of its first member in the order of node ids.

    answers: boxed, the last box of a path, equal by spelling or mathematics; text, the last step
    of a path (its box if it has one), grouped by words or by an embedding model.
    """
    if answers == "boxed":
        return await engines.grader.cluster({n: extract_answer(tree.path_text(n)) for n in nodes})
    ordered = sorted(nodes)
    labels = await engines.texts.group([_closing(tree, node) for node in ordered])
    return dict(zip(ordered, labels, strict=True))


def _closing(tree: Tree, node: NodeId) -> str | None:
    """What a path ends with, without blanks around it; None where that is nothing."""
    last = next((s for s in reversed(tree.path_steps(node)) if s.strip()), "")
    return extract_answer(last) or last.strip() or None
