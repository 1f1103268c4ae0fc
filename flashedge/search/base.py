"""The contract between a search algorithm and whoever drives it (ask/tell).

A search object holds only configuration. `start` and `tell` return a new state and the commands
that follow; the driver carries the commands out and tells the results, in any order within a
level. Telling the same result twice changes nothing. A state is never mutated.

    state, commands = search.start(problem, seed, limits)
    while not finished:
        result = <one of the results that the commands ask for>
        state, commands = search.tell(state, result)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from flashedge.certainty.history import History
from flashedge.search.tree import Tree
from flashedge.types import Granularity, Limits, NodeId, Problem, Segment, Vote

# ---------------------------------------------------------------- commands


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A node to be generated. `seed` fixes its noise (see `seeds.child_seed`)."""

    node: NodeId
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Expand:
    """Generate each child from `parent`'s path. Answered by one `Generated` per child."""

    parent: NodeId
    children: tuple[Child, ...]
    granularity: Granularity


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Score the steps of these nodes. Answered by one `Scored` per node."""

    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Group the answers of these finished nodes by equality. Answered by one `Clustered`."""

    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Ask the path of `node` for its answer now: continue path + suffix, keep the text, discard
    the tokens. The path itself is not touched. Answered by one `ProbeResult`.

    seed: of the probe's own noise; max_tokens: at most; it ends where a box that `suffix` opened
    is closed. Ref: arXiv 2412.20993 §2.1 (probe-in-the-middle).
    """

    node: NodeId
    seed: int
    suffix: str
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The search is over. `choice` is the path to show; `answer` is None if none was found.

    cut_by: what ended it before its own end: certainty, non_convergence or budget; else None.
    """

    choice: NodeId
    answer: str | None
    votes: tuple[Vote, ...]
    cut_by: str | None = None


Command = Expand | Score | Cluster | Probe | Finish

# ---------------------------------------------------------------- results


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    node: NodeId
    segment: Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """scores: (num_steps_of_segment,) in [0, 1], one for each of `segment.steps`."""

    node: NodeId
    scores: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clustered:
    """answers: node -> the representative answer of its cluster (None: no answer in the path)."""

    answers: Mapping[NodeId, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """text: what the model said after the probe's suffix."""

    node: NodeId
    text: str


Result = Generated | Scored | Clustered | ProbeResult

# ---------------------------------------------------------------- the contract


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookahead:
    """What would follow if a node were kept: known before its score is.

    children: the seeds of its next children in order, at most as many as the search could give
    it; empty when the node is terminal.
    """

    granularity: Granularity
    seeds: tuple[int, ...]
    terminal: bool


class SearchState(Protocol):
    """What a driver may read of any search's state."""

    @property
    def tree(self) -> Tree: ...

    @property
    def history(self) -> History:
        """How sure the run was at each checkpoint so far, oldest first."""
        ...


S = TypeVar("S")


@runtime_checkable
class Search(Protocol[S]):
    """A tree search over reasoning steps. Ref: arXiv 2509.00195 §3.1 (the common pattern)."""

    @property
    def name(self) -> str: ...

    @property
    def n(self) -> int:
        """Paths that the search completes (MCTS: rollouts), unless something cuts it."""
        ...

    @property
    def scores_levels(self) -> bool:
        """Whether all that it expands is scored, once the whole level is generated."""
        ...

    def start(self, problem: Problem, seed: int, limits: Limits) -> tuple[S, tuple[Command, ...]]:
        """The root and the first commands. Raises nothing."""
        ...

    def tell(self, state: S, result: Result) -> tuple[S, tuple[Command, ...]]:
        """Take one result in. A result told before, or of a node that was not asked for, changes
        nothing and yields no command."""
        ...

    def conclude(self, state: S) -> tuple[S, tuple[Command, ...]]:
        """Stop now (deadline, early exit) and answer from what is there. Results that are still
        out are ignored when told."""
        ...

    def lookahead(self, state: S, node: NodeId) -> Lookahead:
        """What follows if `node` is kept. Raises KeyError for an unknown node."""
        ...
