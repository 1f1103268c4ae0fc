"""Reuses what an earlier run generated and scored in a run that continues it.

What a node yields is a function of its path and seed, and up to the cut a search expands the same
nodes whatever its token budget. So the events of the earlier run can stand in for the engines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flashedge.events import Event, NodeScored, Probed, StepCompleted
from flashedge.types import FinishReason, NodeId, Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRun:
    """The results of an earlier run, by node."""

    segments: Mapping[NodeId, Segment] = field(default_factory=dict)
    scores: Mapping[NodeId, tuple[float, ...]] = field(default_factory=dict)
    probes: Mapping[NodeId, Probed] = field(default_factory=dict)

    @classmethod
    def from_events(cls, run_events: Iterable[Event]) -> EarlierRun:
        segments: dict[NodeId, Segment] = {}
        scores: dict[NodeId, tuple[float, ...]] = {}
        probes: dict[NodeId, Probed] = {}
        for event in run_events:
            match event:
                case StepCompleted(node=node):
                    segments[node] = Segment(
                        token_ids=event.token_ids,
                        logprobs=event.logprobs,
                        text=event.text,
                        steps=event.steps,
                        finish=FinishReason(event.finish),
                    )
                case NodeScored(node=node):
                    scores[node] = event.scores
                case Probed(node=node):
                    probes[node] = event
                case _:
                    pass
        return cls(segments=segments, scores=scores, probes=probes)


NO_EARLIER_RUN = EarlierRun()
