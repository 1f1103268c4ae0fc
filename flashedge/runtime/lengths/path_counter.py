"""Counts how long a run's paths became, from its events.

The events say how far each node extends its parent's path, and whether the path ended there. So the
counts hold for every strategy: sampling, beam search, MCTS. Paths that were pruned, cut by a limit
or cancelled count as lower bounds.

A path that was cancelled within a node is known by its progress, which live runs report and stored
runs lack. In a stored run the node and its siblings are left out, since counting only those
siblings that ended would favour short ones.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from flashedge.events import Event, NodesExpanded, Progress, StepCompleted
from flashedge.runtime.records.store import RunOutline
from flashedge.scheduling.lengths.outputs import OutputLengths
from flashedge.search.tree import ROOT
from flashedge.types import FinishReason, NodeId


class PathCounter:
    """Counts the paths of one run."""

    def __init__(self, *, sees_progress: bool) -> None:
        """sees_progress: whether `observe` gets the Progress events, as of a live run."""
        self._sees_progress = sees_progress
        self._levels: list[tuple[NodeId, tuple[NodeId, ...]]] = []
        self._ends: dict[NodeId, tuple[int, bool]] = {}  # (tokens, whether its path ends there)
        self._progress: dict[NodeId, int] = {}

    def observe(self, event: Event) -> None:
        match event:
            case NodesExpanded(parent=parent, children=children):
                self.expand(parent, [child[0] for child in children])
            case StepCompleted(node=node, token_ids=token_ids, finish=finish):
                self.complete(node, len(token_ids), finish)
            case Progress(tokens=tokens):
                self._progress.update(tokens)
            case _:
                pass

    def expand(self, parent: NodeId, children: Sequence[NodeId]) -> None:
        self._levels.append((parent, tuple(children)))

    def complete(self, node: NodeId, tokens: int, finish: str) -> None:
        """finish: a value of FinishReason."""
        self._ends[node] = tokens, finish == FinishReason.STOP

    def count(self) -> OutputLengths | None:
        """Count all paths, each up to its last known token, with the weights of `OutputLengths`.
        None where no path is known."""
        path_tokens: dict[NodeId, int] = {ROOT: 0}
        ended: Counter[int] = Counter()
        cut: Counter[int] = Counter()
        for parent, children in self._levels:
            start = path_tokens[parent]
            is_known = self._sees_progress or all(child in self._ends for child in children)
            for child in children:
                tokens, is_end = self._find_end(child)
                path_tokens[child] = start + tokens
                if not tokens or not is_known:
                    continue
                (ended if is_end else cut)[start + tokens] += 1
                if start:
                    cut[start] -= 1
        points = [
            (tokens, is_censored, float(weight))
            for is_censored, counts in ((False, ended), (True, cut))
            for tokens, weight in sorted(counts.items())
            if weight
        ]
        if sum(weight for _, _, weight in points) <= 0:  # not even a first step is known
            return None
        lengths, censored, weights = zip(*points, strict=True)
        return OutputLengths(tokens=lengths, is_censored=censored, weights=weights)

    def measure_kv_share(self, width: int) -> float | None:
        """Divide the tokens of the largest level's paths by those of `width` whole paths.
        A token that several of the level's paths share counts once. The share is in (0, 1], or None
        where no path ended by itself."""
        parents: dict[NodeId, NodeId] = {}
        path_tokens: dict[NodeId, int] = {ROOT: 0}
        levels: dict[int, list[NodeId]] = defaultdict(list)
        depths = {ROOT: 0}
        for parent, children in self._levels:
            depth = depths[parent] + 1
            levels[depth] += children
            for child in children:
                parents[child], depths[child] = parent, depth
                path_tokens[child] = path_tokens[parent] + self._find_end(child)[0]
        ended = [path_tokens[node] for node, (_, is_end) in self._ends.items() if is_end]
        if not sum(ended):
            return None
        held = max(self._count_distinct(level, parents) for level in levels.values())
        return min(1.0, held / (width * sum(ended) / len(ended)))

    def _count_distinct(self, level: Sequence[NodeId], parents: Mapping[NodeId, NodeId]) -> int:
        seen = {ROOT}
        for node in level:
            while node not in seen:
                seen.add(node)
                node = parents[node]
        return sum(self._find_end(node)[0] for node in seen)

    def _find_end(self, node: NodeId) -> tuple[int, bool]:
        """Return the node's tokens, 0 before its first, and whether its path ends there."""
        return self._ends.get(node) or (self._progress.get(node, 0), False)


def count_outline(outline: RunOutline) -> OutputLengths | None:
    """Count the paths of a stored run. None where no path is known."""
    counter = PathCounter(sees_progress=False)
    for level in outline.levels:
        counter.expand(*level)
    for step in outline.steps:
        counter.complete(*step)
    return counter.count()
