"""The contract between a search and its driver (ask/tell): commands, results and lookahead.

A `voting.Search` holds only configuration. `start` and `tell` return a new state and commands. The
driver executes the commands and tells the search their results, in any order within a level. A
result that is told twice changes nothing. A state is never mutated.

    state, commands = search.start(problem, seed, limits)
    while not finished:
        result = <the result of one of the commands>
        state, commands = search.tell(state, result)
"""

from collections.abc import Mapping
from dataclasses import dataclass

from flashedge.types import Granularity, NodeId, Segment, Vote

# ---------------------------------------------------------------- commands


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    node: NodeId
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Expand:
    """Continue the path of `parent` once for each child. The result is a `Generated` per child."""

    parent: NodeId
    children: tuple[Child, ...]
    granularity: Granularity


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Score generated nodes. The result is a `Scored` per node."""

    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Group the answers of these finished nodes by equality. The result is one `Clustered`."""

    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Ask for the answer of an unfinished path: continue path + suffix, keep the text, discard the
    tokens. The result is one `ProbeResult`. Ref: arXiv 2412.20993 §2.1 (probe-in-the-middle)."""

    node: NodeId
    seed: int
    suffix: str
    max_tokens: int
    """Length limit."""
    tail_tokens: int = 0
    """Tokens to draw behind the box that `suffix` opened, where a model voices its doubts. The
    probe ends with them, or where the model ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Stop generating or scoring these nodes. A late result is ignored: the search has already
    marked them as cancelled and dropped their segments."""

    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Report when each of these nodes has at least the given number of tokens. A search needs this
    if it depends on which path ends first. The result is a `Reached` per node, or its `Generated`
    if it ends before. A second watch of a node replaces the first."""

    tokens: Mapping[NodeId, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The search is over."""

    choice: NodeId
    """The path to show."""
    answer: str | None
    """None if no path has one."""
    votes: tuple[Vote, ...]
    """The winner first. Empty if no path has an answer."""
    cut_by: str | None = None
    """What ended the search early: certainty, non_convergence, budget, reward or futility. None if
    nothing did."""
    unlikely: bool = False
    """Whether the search gave up because no path that it could still find is good enough. The
    answer is probably wrong."""
    unboxed: bool = False
    """Whether the answer was found outside a box, since no path has a boxed one."""


Command = Expand | Score | Cluster | Probe | Cancel | Watch | Finish

# ---------------------------------------------------------------- results


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    node: NodeId
    segment: Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    node: NodeId
    scores: tuple[float, ...]
    """(num_steps_of_segment,) in [0, 1]; (1,) where the verifier judges whole answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clustered:
    answers: Mapping[NodeId, str | None]
    """The representative answer of each node's cluster. None for a path without an answer."""
    is_unboxed: bool = False
    """Whether no path has a boxed answer (see `answers.extraction`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    node: NodeId
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A watched node is still generating, and has at least `tokens` tokens."""

    node: NodeId
    tokens: int


Result = Generated | Scored | Clustered | ProbeResult | Reached


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookahead:
    """What follows if a node is kept. It is known before the score, so children can be drafted."""

    granularity: Granularity
    seeds: tuple[int, ...]
    """Seeds of the next children in order, for the most children that the node is expected to get.
    Empty if nothing follows the node."""
