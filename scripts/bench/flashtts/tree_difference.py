"""How the trees of two runs of one search differ: in what they chose, or in last bits alone.

Kernels are bit-equal for every batch up to a length of context that the self-test measures
(`invariant_tokens`). Beyond it a score may differ in its last bits from one batch to the next,
with and without optimizations.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from flashedge.runtime.drive.driver import Outcome
from flashedge.search.tree import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeDifference:
    """What differs between two outcomes of the same request."""

    is_equal: bool
    """Everything: tokens, choices, scores and log-probabilities, bit for bit."""

    chose_same: bool
    """Tokens, nodes, their statuses and answers, and the choice."""

    largest: float
    """Largest absolute difference of a score, in [0, 1]. 0.0 where the choices differ."""

    from_tokens: int | None
    """Tokens of prompt and path at the shortest node whose numbers differ. None if none does."""


def compare_outcomes(ours: Outcome, stock: Outcome, prompt_tokens: int) -> TreeDifference:
    """Compare a run with its naive twin."""
    if ours == stock:
        return TreeDifference(is_equal=True, chose_same=True, largest=0.0, from_tokens=None)
    pairs = list(zip(ours.tree.nodes.values(), stock.tree.nodes.values(), strict=False))
    same = [_drop_numbers(node) for node in ours.tree.nodes.values()] == [
        _drop_numbers(node) for node in stock.tree.nodes.values()
    ]
    same &= (ours.finish.choice, ours.finish.answer, ours.cut_by) == (
        stock.finish.choice,
        stock.finish.answer,
        stock.cut_by,
    )
    gaps = _list_gaps(pairs) if same else ()
    lengths = [prompt_tokens + one.path_tokens for one, other in pairs if one != other]
    return TreeDifference(
        is_equal=False,
        chose_same=same,
        largest=max(gaps, default=0.0),
        from_tokens=min(lengths, default=None),
    )


def _drop_numbers(node: Node) -> Node:
    """The node without what kernels compute in floating point."""
    segment = node.segment and replace(node.segment, logprobs=())
    return replace(node, scores=None, segment=segment)


def _list_gaps(pairs: Iterable[tuple[Node, Node]]) -> Iterator[float]:
    for one, other in pairs:
        yield from (abs(a - b) for a, b in zip(one.scores or (), other.scores or (), strict=True))
