"""Reuses what an earlier run generated and scored in a run that continues it.

Both runs have the same problem, seed and sampling. What a node yields depends on its path and its
seed alone, and the seed follows from the child indices on that path. So the new run takes the
earlier run's results wherever it comes to the same path, even if the node has another id there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flashedge.events import Event, NodeScored, NodesExpanded, Probed, StepCompleted
from flashedge.search.tree import ROOT, Tree
from flashedge.types import FinishReason, NodeId, Segment

Indices = tuple[int, ...]
"""The child indices on the path from the root to a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRun:
    """The results of an earlier run. A lookup returns None where it has none for the node."""

    segments: Mapping[Indices, Segment] = field(default_factory=dict)
    scores: Mapping[Indices, tuple[float, ...]] = field(default_factory=dict)
    probes: Mapping[Indices, Probed] = field(default_factory=dict)

    @classmethod
    def from_events(cls, run_events: Iterable[Event]) -> EarlierRun:
        paths: dict[NodeId, Indices] = {ROOT: ()}
        segments: dict[Indices, Segment] = {}
        scores: dict[Indices, tuple[float, ...]] = {}
        probes: dict[Indices, Probed] = {}
        for event in run_events:
            match event:
                case NodesExpanded(parent=parent, children=children):
                    paths |= {node: (*paths[parent], index) for node, index, _ in children}
                case StepCompleted(node=node):
                    segments[paths[node]] = Segment(
                        token_ids=event.token_ids,
                        logprobs=event.logprobs,
                        text=event.text,
                        steps=event.steps,
                        finish=FinishReason(event.finish),
                        confidences=event.confidences,
                    )
                case NodeScored(node=node):
                    scores[paths[node]] = event.scores
                case Probed(node=node):
                    probes[paths[node]] = event
                case _:
                    pass
        return cls(segments=segments, scores=scores, probes=probes)

    def find_segment(self, tree: Tree, node: NodeId) -> Segment | None:
        return self.segments.get(_list_indices(tree, node)) if self.segments else None

    def find_scores(self, tree: Tree, node: NodeId) -> tuple[float, ...] | None:
        return self.scores.get(_list_indices(tree, node)) if self.scores else None

    def find_probe(self, tree: Tree, node: NodeId) -> Probed | None:
        return self.probes.get(_list_indices(tree, node)) if self.probes else None


def _list_indices(tree: Tree, node: NodeId) -> Indices:
    return tuple(at.index for at in tree.path(node))


NO_EARLIER_RUN = EarlierRun()
