"""Which nodes of an open level are certainly kept, and with how many children at least.

A level is decided when its last score is there. Some of the decision is certain before: a finished
path is kept if too few others can still be better. The search itself decides as ever; what is found
here only says which children may be generated at once.

Proof. Let x be a finished, scored node whose path goes on. Each other node of its family stays a
rival or leaves:

- A scored one has its rank. Ties go to the lower id, as in `Stepwise.settle_level`.
- An unscored one may get any score up to its bound: 1, or less where the scores of its path so far
  allow no more (`limit_score`). A rival that scores less never gives x fewer children.
- One that generates may end its path. Then it is no rival, and the width falls by one. Any number
  may end, so what counts is the least over all numbers. Those with the lowest bounds end first,
  since x loses most to the others.
- One that repeats another's text leaves, since only the lowest id of a text stays. Fewer rivals
  never give x fewer children. But if x itself repeats a lower id, the lower one is kept in its
  place, with another seed and so another subtree. So x is certain only if no lower id that goes on
  has its text or can still write it: what a growing path has written must differ from x's text.

`count_certain_children` of the strategy turns rank, rivals and width into children. A level has a
node for each path that the search has yet to complete, so the width of a family is the number of
its nodes whose paths go on. Nothing is certain if this level may use up the token budget, or if so
many paths may end that the policy is asked. A deadline may still end the run before.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from flashedge.search.aggregates import aggregate, limit_score
from flashedge.search.level import LevelState, Standing, Stepwise
from flashedge.search.tree import Node, NodeStatus
from flashedge.search.voting import Phase, Search, SearchState
from flashedge.types import NodeId

Certain = Mapping[NodeId, int]
"""The least number of children of each node that is certainly kept."""
Key = tuple[float, NodeId]
"""(-score, id): the lowest is kept first."""
NONE: Certain = MappingProxyType({})
RECHECKS = 3
"""Known nodes that are examined again at a time. In beam search with four children no more than
three have fewer children than they may get. Elsewhere many do, and examining all of 256 took longer
than generating them."""
_TAIL = 16
"""Characters by which texts are compared before whole paths are. Chosen by hand: two characters are
often equal, and two hundred cost what whole steps do."""


@dataclass(slots=True)
class _Family:
    """The nodes of a level among which equal paths are duplicates."""

    width: int = 0
    """Nodes whose path is not known to end."""
    scored: list[Key] = field(default_factory=list)
    """Finished nodes that go on, without those that repeat a sibling."""
    unscored: list[Key] = field(default_factory=list)
    """The same without a score yet, each with the best that it can get."""
    growing: list[Key] = field(default_factory=list)
    """Nodes that generate, likewise."""


def find_certain(
    search: Search[Any],
    state: SearchState,
    scores: Mapping[NodeId, tuple[float, ...]],
    read: Callable[[NodeId], str] = lambda node: "",
    before: Certain = NONE,
) -> Certain:
    """Find the nodes of the level that are kept in every completion of it.

    scores: those that are known, as in `base.Scored`. read: returns what a growing node has written
    so far; the rest may not change it. before: an earlier result for the same level. It holds
    still, so only RECHECKS of its nodes are examined again, to see if they get more children."""
    is_open = state.phase in (Phase.GENERATE, Phase.SCORE)
    if not (isinstance(search, Stepwise) and isinstance(state, LevelState) and is_open):
        return NONE
    families = _sort_level(search, state, scores)
    if _may_stop(search, state, families):
        return NONE
    certain: dict[NodeId, int] = {}
    most, rechecks = search.limit_children(state), RECHECKS
    for family in families:
        for key in sorted(family.scored):
            node = key[1]
            known = before.get(node, 0)
            if known and (known >= most or not rechecks):
                certain[node] = known
                continue
            rechecks -= known > 0
            if not (least := search.count_certain_children(_describe(family, key))):
                break  # those behind have no more
            if known or not _may_repeat(state, family, node, read):
                certain[node] = max(known, least)
    return certain


def _sort_level(
    search: Stepwise, state: LevelState, scores: Mapping[NodeId, tuple[float, ...]]
) -> list[_Family]:
    tree, how = state.tree, search.aggregate
    families: dict[int, _Family] = {}
    above: dict[NodeId | None, tuple[float, ...]] = {}
    seen: set[tuple[int, NodeId | None, str]] = set()
    for node in state.level:
        at, number = tree[node], search.find_family(state, node)
        family = families.setdefault(number, _Family())
        if at.parent not in above:
            above[at.parent] = () if at.parent is None else tree.path_scores(at.parent)
        before = above[at.parent]
        is_growing = at.status is NodeStatus.GENERATING
        if not is_growing and search.ends_path(state, node):
            continue
        family.width += 1
        best = (-limit_score(before, how), node)
        if is_growing:
            family.growing.append(best)
            continue
        assert at.segment is not None, "it has generated"
        if (text := (number, at.parent, at.segment.text)) in seen:
            continue
        seen.add(text)
        known = at.scores or scores.get(node)
        if known is None:
            family.unscored.append(best)
        else:
            family.scored.append((-aggregate((*before, *known), how), node))
    for family in families.values():
        family.growing.sort()
    return list(families.values())


def _may_stop(search: Stepwise, state: LevelState, families: list[_Family]) -> bool:
    """Whether the budget or the policy may end the search after this level."""
    growing = [state.tree[node] for family in families for _, node in family.growing]
    if (budget := state.limits.token_budget) is not None:
        bounds = (
            search.choose_granularity(state, at.parent) for at in growing if at.parent is not None
        )
        if state.tokens + sum(bound.max_tokens for bound in bounds) >= budget:
            return True
    ended = len(state.level) - sum(family.width for family in families)
    most = search.count_progress(state) + ended + len(growing)
    return search.policy is not None and most >= state.ask_at


def _describe(family: _Family, key: Key) -> Standing:
    """How a scored node stands, if its text is its own."""
    finished = [other for other in (*family.scored, *family.unscored) if other != key]
    return Standing(
        score=-key[0],
        finished=[-score for score, _ in finished],
        better=sum(other < key for other in finished),
        growing=[-score for score, _ in family.growing],
        growing_better=bisect_left(family.growing, key),
        width=family.width,
    )


def _may_repeat(
    state: LevelState, family: _Family, node: NodeId, read: Callable[[NodeId], str]
) -> bool:
    """Whether a node with a lower id has the text of this one, or can still write it."""
    tree = state.tree
    text, tail = tree.path_text(node).strip(), _read_tail(tree[node])
    for _, other in (*family.scored, *family.unscored):
        if other < node:
            end = _read_tail(tree[other])
            is_near = end.endswith(tail) or tail.endswith(end)
            if is_near and tree.path_text(other).strip() == text:
                return True
    for _, other in family.growing:
        parent = tree[other].parent
        if other > node or parent is None:
            continue
        if text.startswith((tree.path_text(parent) + read(other)).strip()):
            return True
    return False


def _read_tail(node: Node) -> str:
    """The last characters of the path, or fewer where the step itself has fewer."""
    return "" if node.segment is None else node.segment.text.rstrip()[-_TAIL:]
