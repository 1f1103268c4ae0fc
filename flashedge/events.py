"""What happens in a run, as numbered facts: the dashboard, SSE and the run store are their folds.

Every event is frozen and goes through JSON and back unchanged (`to_json`, `from_json`).
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flashedge.types import NodeId, TokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """The run left the queue. `config` is the request as understood, all defaults filled in."""

    config: Mapping[str, Any]
    queue_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesExpanded:
    """New nodes began to generate. children: (node, child index, seed) of each."""

    parent: NodeId
    depth: int
    children: tuple[tuple[NodeId, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Tokens so far of nodes that generate; sent at most ten times a second. Not stored."""

    tokens: tuple[tuple[NodeId, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCompleted:
    """A node's segment is whole. `finish` is a FinishReason."""

    node: NodeId
    token_ids: TokenIds
    logprobs: tuple[float, ...]
    text: str
    steps: tuple[str, ...]
    finish: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeScored:
    """scores: one for each step of the node's segment; score: the whole path's aggregate."""

    node: NodeId
    scores: tuple[float, ...]
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesMarked:
    """Nodes changed status (active, pruned, duplicate, complete, cancelled)."""

    status: str
    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CertaintyUpdated:
    """How sure the run is at a fixed point. certainty in [0, 1]: 1 - normalized entropy of the
    answers so far (a probed chain: the consistency of its probes); None: it can't be told yet.

    measures: every measure taken, by name (see `certainty.history`); knob: finished paths,
    rollouts or probes so far; tokens: committed tokens so far; answer: what the run would say if
    it ended here. A run that no policy may stop tells its past fixed points at its end.
    """

    certainty: float | None
    answers: int
    measures: Mapping[str, float] = field(default_factory=dict)
    knob: int = 0
    tokens: int = 0
    answer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """A probe of a chain was answered. text: what the model said after the probe's suffix;
    tokens: what that cost (they are no part of the tree)."""

    node: NodeId
    text: str
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyExit:
    """The search stopped before its own end. reason: certainty, non_convergence, budget, or
    deadline."""

    reason: str
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRestarted:
    """An engine died under the run and came back; nothing of the run was lost."""

    engine: str
    waited_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KvSplitChanged:
    """The engines' KV memory was divided anew, for all runs (told to each at its first level too).

    Bytes and sequences of a step for each; offload: each has its bytes only while the other's KV
    is away; predicted_s: of a level; curves: what the costs were taken from.
    """

    generator_bytes: int
    verifier_bytes: int
    decode_batch: int
    prefill_batch: int
    offload: bool
    predicted_s: float
    curves: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Offloaded:
    """An engine's KV memory went to the other one. saved_bytes: that wait in host memory."""

    engine: str
    saved_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """It is back; loaded_bytes: of what was saved and is still of use."""

    engine: str
    loaded_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """result: the object of `solve --json`."""

    result: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed:
    error: str
    code: str
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCancelled:
    reason: str


Event = (
    RunStarted
    | NodesExpanded
    | Progress
    | StepCompleted
    | NodeScored
    | NodesMarked
    | CertaintyUpdated
    | Probed
    | EarlyExit
    | EngineRestarted
    | KvSplitChanged
    | Offloaded
    | Restored
    | RunFinished
    | RunFailed
    | RunCancelled
)

TERMINAL = (RunFinished, RunFailed, RunCancelled)
_KINDS: Mapping[str, type] = {k.__name__: k for k in typing.get_args(Event)}


def to_json(event: Event) -> dict[str, Any]:
    """`{"type": name, **fields}` of plain JSON values."""
    return {"type": type(event).__name__, **dataclasses.asdict(event)}


def from_json(data: Mapping[str, Any]) -> Event:
    """The inverse of `to_json`. Raises ValueError on an unknown type or wrong fields."""
    kind = _KINDS.get(str(data.get("type")))
    if kind is None:
        raise ValueError(f"unknown event type {data.get('type')!r}")
    hints = typing.get_type_hints(kind)
    fields = {k: _as(hints.get(k), v) for k, v in data.items() if k != "type"}
    try:
        return typing.cast(Event, kind(**fields))
    except TypeError as error:
        raise ValueError(f"{kind.__name__}: {error}") from error


def _as(hint: Any, value: Any) -> Any:
    """JSON lists back to the tuples that `hint` asks for, at any depth."""
    origin = typing.get_origin(hint)
    if origin is tuple and isinstance(value, list | tuple):
        inner = typing.get_args(hint)
        if len(inner) == 2 and inner[1] is Ellipsis:
            return tuple(_as(inner[0], v) for v in value)
        return tuple(_as(h, v) for h, v in zip(inner, value, strict=True))
    if origin in (typing.Union, types.UnionType) and value is not None:
        return _as(next(h for h in typing.get_args(hint) if h is not type(None)), value)
    return value
