"""What happens in a run, as numbered events. Dashboard, SSE stream and run store read only these.

Every event is frozen, and `from_json(to_json(event)) == event`.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flashedge.types import NodeId, TokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """The run left the queue."""

    config: Mapping[str, Any]
    """The request with all its defaults filled in."""
    queue_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesExpanded:
    """New nodes began to generate."""

    parent: NodeId
    depth: int
    children: tuple[tuple[NodeId, int, int], ...]
    """(node, child index, seed) of each new node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRead:
    """The first request of the run has begun to generate."""

    tokens: int
    """Length of the run's prompt."""
    cached_tokens: int
    """Those of them whose KV the generator reused, as of the conversation's turn before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far nodes have generated. Sent at most ten times a second, and not stored."""

    tokens: tuple[tuple[NodeId, int], ...]
    """(node, tokens so far)."""
    tails: tuple[tuple[NodeId, str], ...] = ()
    """The end of the text so far of some of these nodes; sent at most once a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCompleted:
    """A node's segment is complete."""

    node: NodeId
    token_ids: TokenIds
    logprobs: tuple[float, ...]
    text: str
    steps: tuple[str, ...]
    finish: str
    """A value of FinishReason."""
    answer: str | None = None
    """The boxed answer of a path that ends here, as the model wrote it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeScored:
    """The verifier scored a node."""

    node: NodeId
    scores: tuple[float, ...]
    """One score in [0, 1] for each step of the node's segment."""
    score: float
    """The aggregate over the whole path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesMarked:
    """Nodes changed their status."""

    status: str
    """active, pruned, duplicate, complete or cancelled. A cancelled node loses its text, tokens
    and scores."""
    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutsEnded:
    """MCTS rollouts ended. Visits and mean values of all nodes follow from these."""

    nodes: tuple[NodeId, ...]
    """The node in which each rollout ended, in order."""
    futile: int = 0
    """Further rollouts that were cut, since nothing below their node can be good enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutsAllowed:
    """A boosted MCTS run may have another number of rollouts in flight from now on."""

    turn: int
    """Expansions that the search had taken before. With the seed, the turns and numbers of all
    these events fix the tree."""
    rollouts: int
    of: int
    """Rollouts that all boosted runs may have together at the time. 0: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutsInFlight:
    """Other MCTS rollouts are in flight than before. Only runs that may have several send it."""

    flights: tuple[tuple[int, NodeId], ...]
    """(number, node) of each: rollouts are numbered in the order of their launch, and stand at the
    node that they expand or wait at. A new number was launched; one that is missing has ended."""
    cancelled: int
    """Rollouts that were cancelled so far, because the run may have fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertaintyUpdated:
    """How sure the run is at a checkpoint.

    A run that no policy may stop emits all its checkpoints at its end.
    """

    certainty: float | None
    """1 - normalized entropy of the answers so far; the consistency of the probes of a probed
    chain. In [0, 1]; None while it is unknown."""
    answers: int
    """Answers so far."""
    measures: Mapping[str, float] = field(default_factory=dict)
    """Every measure by name (see `certainty.history`)."""
    progress: int = 0
    """The progress: finished paths, rollouts or probes so far."""
    tokens: int = 0
    """Committed tokens so far."""
    answer: str | None = None
    """The answer of the run if it ended here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """A probe of a chain ended."""

    node: NodeId
    text: str
    """The text that the model generated after the probe's suffix."""
    tokens: int
    """Tokens that the probe generated. They are no part of the tree."""


EXIT_REASONS = ("certainty", "non_convergence", "budget", "deadline", "reward", "futility")


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyExit:
    """The search stopped before its own end."""

    reason: str
    """One of EXIT_REASONS."""
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRestarted:
    """An engine died during the run and was restarted. The run lost nothing."""

    engine: str
    waited_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KvSplitChanged:
    """The KV memory was divided again between the engines, for all runs.

    Each run also emits the current split at its first level.
    """

    generator_bytes: int
    verifier_bytes: int
    decode_batch: int
    """Sequences in one step of the generator."""
    prefill_batch: int
    """Sequences in one step of the verifier."""
    offload: bool
    """Whether the engines own the memory in turn, each while the other's KV is offloaded."""
    predicted_s: float
    """Predicted seconds of a level."""
    curves: str
    """The source of the cost curves, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offloaded:
    """An engine gave its KV memory to the other one."""

    engine: str
    saved_bytes: int
    """Bytes of its KV that are now in host memory."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """An engine got its KV memory back."""

    engine: str
    loaded_bytes: int
    """Bytes of the saved KV that were still needed."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """The run ended with a result."""

    result: Mapping[str, Any]
    """The object that `flashedge solve --json` prints."""


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
    | PromptRead
    | Progress
    | StepCompleted
    | NodeScored
    | NodesMarked
    | RolloutsEnded
    | RolloutsAllowed
    | RolloutsInFlight
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
    """`{"type": name, **fields}` of plain JSON values. Mappings are not copied: the result of a run
    holds its whole tree, and a copy takes seven times as long as writing it."""
    return {"type": type(event).__name__, **_list_fields(event)}


def _list_fields(record: Any) -> dict[str, Any]:
    return {f.name: _to_plain(getattr(record, f.name)) for f in dataclasses.fields(record)}


def _to_plain(value: Any) -> Any:
    """Mappings hold plain values already (`config`, `measures`, `result`), and so does a sequence
    that begins with one: a step has hundreds of tokens."""
    if isinstance(value, (list, tuple)):
        is_plain = not value or isinstance(value[0], str | int | float)
        return value if is_plain else type(value)(map(_to_plain, value))
    return _list_fields(value) if dataclasses.is_dataclass(value) else value


def from_json(data: Mapping[str, Any]) -> Event:
    """The inverse of `to_json`. Raises ValueError on an unknown type or wrong fields."""
    kind = _KINDS.get(str(data.get("type")))
    if kind is None:
        raise ValueError(f"unknown event type {data.get('type')!r}")
    hints = _find_hints(kind)
    fields = {
        name: _restore_tuples(hints.get(name), value)
        for name, value in data.items()
        if name != "type"
    }
    try:
        return typing.cast(Event, kind(**fields))
    except TypeError as error:
        raise ValueError(f"{kind.__name__}: {error}") from error


_find_hints = functools.cache(typing.get_type_hints)


def _restore_tuples(hint: Any, value: Any) -> Any:
    """`value` with JSON lists turned into the tuples of `hint`, at any depth."""
    origin = typing.get_origin(hint)
    if origin is tuple and isinstance(value, list | tuple):
        inner = typing.get_args(hint)
        if len(inner) == 2 and inner[1] is Ellipsis:
            return tuple(_restore_tuples(inner[0], v) for v in value)
        return tuple(_restore_tuples(h, v) for h, v in zip(inner, value, strict=True))
    if origin in (typing.Union, types.UnionType) and value is not None:
        some = next(h for h in typing.get_args(hint) if h is not type(None))
        return _restore_tuples(some, value)
    return value
