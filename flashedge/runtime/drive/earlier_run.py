"""What an earlier run generated and scored, so that a run that continues it need not do it again.

What a node yields is a function of its path and seed, and a search asks for the same nodes
whatever its token budget, up to the cut: so an earlier run's log answers for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from flashedge.errors import Conflict
from flashedge.events import Event, NodeScored, Probed, StepCompleted
from flashedge.runtime.request.spec import RunSpec
from flashedge.types import FinishReason, NodeId, Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """By node: its segment, its step scores, the probe behind it."""

    segments: Mapping[NodeId, Segment] = field(default_factory=dict)
    scores: Mapping[NodeId, tuple[float, ...]] = field(default_factory=dict)
    probes: Mapping[NodeId, Probed] = field(default_factory=dict)

    @classmethod
    def of(cls, log: Iterable[Event]) -> Recall:
        segments: dict[NodeId, Segment] = {}
        scores: dict[NodeId, tuple[float, ...]] = {}
        probes: dict[NodeId, Probed] = {}
        for event in log:
            match event:
                case StepCompleted(node=node):
                    segments[node] = Segment(
                        token_ids=event.token_ids,
                        logprobs=event.logprobs,
                        text=event.text,
                        steps=event.steps,
                        finish=FinishReason(event.finish),
                    )
                case NodeScored(node=node, scores=found):
                    scores[node] = found
                case Probed(node=node):
                    probes[node] = event
                case _:
                    pass
        return cls(segments=segments, scores=scores, probes=probes)


NOTHING = Recall()


def check_continues(earlier: RunSpec, spec: RunSpec, run_id: str) -> None:
    """Raises Conflict unless `spec` asks for what `earlier` did, but for budget and deadline."""
    asked = replace(earlier, token_budget=spec.token_budget, deadline_s=spec.deadline_s)
    if asked.to_json() != spec.to_json():
        raise Conflict(
            f"run {run_id} asked for something else; only token_budget and deadline_s may differ",
            param="continues",
        )
