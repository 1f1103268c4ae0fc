"""What happens in a run, as events. The SSE stream carries them and the run store keeps them."""

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
    config: Mapping[str, Any]
    """The request with all its defaults filled in."""
    queue_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesExpanded:
    parent: NodeId
    depth: int
    children: tuple[tuple[NodeId, int, int], ...]
    """(node, child index, seed) of each new node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRead:
    """The first request of the run has begun to generate."""

    tokens: int
    cached_tokens: int
    """Tokens of the prompt whose KV the generator reused, such as those of an earlier turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How many tokens nodes have generated. Sent at most ten times a second, and not stored."""

    tokens: tuple[tuple[NodeId, int], ...]
    """(node, tokens so far)."""
    tails: tuple[tuple[NodeId, str], ...] = ()
    """(node, the end of its text so far) of some of these nodes. Sent at most once a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCompleted:
    """A node's segment (`types.Segment`) is complete."""

    node: NodeId
    token_ids: TokenIds
    logprobs: tuple[float, ...]
    text: str
    steps: tuple[str, ...]
    finish: str
    answer: str | None = None
    """The boxed answer of a path that ends here, as the model wrote it."""
    confidences: tuple[float, ...] = ()
    """See `types.Segment`."""


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
    status: str
    """active, pruned, duplicate, complete or cancelled. A cancelled node loses text and scores."""
    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutsEnded:
    """MCTS rollouts ended. The visits and mean values of nodes follow from these and NodeScored."""

    nodes: tuple[NodeId, ...]
    """The node in which each rollout ended."""
    futile: int = 0
    """Number of further rollouts, which were cut as futile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutsAllowed:
    """A boosted MCTS run may have another number of rollouts in flight from now on."""

    turn: int
    """Expansions that the search had taken before. With the seed these events fix the tree."""
    rollouts: int
    of: int
    """Rollouts that all boosted runs may have together. 0 if not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutsInFlight:
    """The MCTS rollouts in flight have changed. Only runs that may have several send it."""

    flights: tuple[tuple[int, NodeId], ...]
    """(number by order of launch, the node that it expands or waits at) of each rollout."""
    cancelled: int
    """Rollouts cancelled so far because the run may have fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertaintyUpdated:
    """How sure the run is at a checkpoint. A run that no policy may stop sends these at its end."""

    certainty: float | None
    """In [0, 1]: 1 - the normalized entropy of the answers, the consistency of probes, or what a
    user's search program measures. None if there is no such measure."""
    answers: int
    measures: Mapping[str, float] = field(default_factory=dict)
    """Every measure by name (see `certainty.measures`)."""
    progress: int = 0
    """Finished paths, rollouts or probes so far."""
    tokens: int = 0
    answer: str | None = None
    """The answer of the run if it ended here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    node: NodeId
    text: str
    """What the probe generated."""
    tokens: int
    """Tokens that the probe generated. They are no part of the tree."""


EXIT_REASONS = ("certainty", "non_convergence", "budget", "deadline", "reward", "futility")


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyExit:
    reason: str
    """One of EXIT_REASONS."""
    tokens: int
    """Tokens of the tree so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRestarted:
    """An engine died during the run and was restarted. The run lost nothing."""

    engine: str
    waited_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KvSplitChanged:
    """The KV memory was divided again between the engines, for all runs. Each run also sends the
    current split at its first level."""

    generator_bytes: int
    verifier_bytes: int
    decode_batch: int
    prefill_batch: int
    """Paths that generator and verifier are assumed to compute at once."""
    offload: bool
    """Whether the engines own the memory in turn, each while the other's KV is offloaded."""
    predicted_s: float
    """Predicted time of a level."""
    curves: str
    """The source of the cost curves by which the split was chosen, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offloaded:
    engine: str
    saved_bytes: int
    """Bytes of its KV that are now in host memory."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    engine: str
    loaded_bytes: int
    """Bytes of the saved KV that were still needed."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
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
    """`{"type": name, **fields}` of values that json can write. None of them is copied."""
    fields = {field.name: getattr(event, field.name) for field in dataclasses.fields(event)}
    return {"type": type(event).__name__, **fields}


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
