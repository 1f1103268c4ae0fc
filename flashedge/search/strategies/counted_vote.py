"""Votes that are counted after every path, and draw as many paths at once as they still need.

GENERATE --a path is taken--> CHECK --unsure--> GENERATE, with more paths where they are wanted
CHECK --sure--> SCORE --> DONE
GENERATE --no path is left, or the budget is spent--> CLUSTER --> SCORE --> DONE

Only best of n has the phase SCORE.

A group of paths takes as long as its longest one. So a vote begins with a few paths. When those
that end first agree, the others are cancelled; when they differ, more begin at once.

The path that ends first must not depend on the machine, or one seed would give several trees. So
the clock counts tokens: a path that begins at t and has k tokens ends at t + k. It is taken once no
other can end before it (`Watch`). A cancelled path stays in the tree as a node without a segment.

This is ours. Ref: arXiv 2305.11860 (one path after the other); 2412.20993 App. G.4.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from flashedge.certainty.measures import (
    ENTROPY,
    LEAD,
    count_wanted,
    measure_certainty,
    measure_lead,
)
from flashedge.certainty.policies import Rule, find_lead
from flashedge.search.base import Cancel, Command, Reached, Result, Score, Watch
from flashedge.search.tree import ROOT, NodeStatus, Tree
from flashedge.search.voting import BUDGET, Phase, Search, SearchState
from flashedge.types import Limits, NodeId, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedState(SearchState):
    clock: int = 0
    """When the last taken path ended, in tokens (see the module's docstring)."""
    starts: Mapping[NodeId, int] = field(default_factory=dict)
    """The clock when each open path began."""
    reached: Mapping[NodeId, int] = field(default_factory=dict)
    """Tokens that a path is known to have."""
    watched: Mapping[NodeId, int] = field(default_factory=dict)
    """Tokens of the last `Watch` of a path."""
    is_concluded: bool = False
    """Whether the vote had to stop at once, so that nothing more is scored."""

    @property
    def tokens(self) -> int:
        """Tokens of the paths that were taken. Which others have arrived depends on timing."""
        return sum(self.tree[node].path_tokens for node in self.complete)

    def find_end(self, node: NodeId) -> int:
        """The clock at the end of a generated path that is not taken yet."""
        return self.starts[node] + self.tree[node].path_tokens

    def list_behind(self, end: int) -> dict[NodeId, int]:
        """Open paths that could still end by `end`, with the tokens from which on they can't."""
        return {
            node: end - start + 1
            for node, start in self.starts.items()
            if self.tree[node].segment is None and start + self.reached.get(node, 0) <= end
        }


Move = tuple[CountedState, tuple[Command, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedSelfConsistency(Search[CountedState]):
    """Self-consistency that stops by its counts. `find_lead` must find a rule in `policy`."""

    name: ClassVar[str] = "self_consistency"
    scores_levels: ClassVar[bool] = False
    selection: str = "majority"

    @property
    def _lead(self) -> Rule:
        lead = find_lead(self.policy)
        assert lead is not None, "the vote stops by its lead"
        return lead

    # ------------------------------------------------------------ ask and tell

    def start(self, problem: Problem, seed: int, limits: Limits) -> Move:
        state = CountedState(tree=Tree.from_seed(seed), limits=limits)
        return self._begin(state, min(self.n, self._lead.detect))

    def tell(self, state: CountedState, result: Result) -> Move:
        if not isinstance(result, Reached):
            # dataclass(slots=True) makes a new class, which zero-argument super() does not know.
            return Search.tell(self, state, result)
        node, tokens = result.node, result.tokens
        if node not in state.starts or tokens <= state.reached.get(node, 0):
            return state, ()
        return self._advance(replace(state, reached={**state.reached, node: tokens}))

    def take_segment(self, state: CountedState, node: NodeId) -> Move:
        return self._advance(state)

    def conclude(self, state: CountedState) -> Move:
        """Vote at once, also if the answers are already being grouped or scored."""
        return (state, ()) if state.phase is Phase.DONE else self.stop(state)

    def stop(self, state: CountedState) -> Move:
        nodes = sorted((*state.complete, *state.starts))
        ended = tuple(node for node in nodes if state.tree[node].segment is not None)
        state = self.settle_open(state, nodes)
        return self.vote(replace(state, complete=ended, starts={}, is_concluded=True))

    def _begin(self, state: CountedState, count: int) -> Move:
        state, nodes, expand = self.grow(state, ROOT, count)
        starts = {**state.starts, **dict.fromkeys(nodes, state.clock)}
        return replace(state, starts=starts), (expand,)

    def _advance(self, state: CountedState) -> Move:
        """Take the path that ended first, if it is known which one did."""
        ended = [node for node in state.starts if state.tree[node].segment is not None]
        if state.phase is not Phase.GENERATE or not ended:
            return state, ()
        first = min(ended, key=lambda node: (state.find_end(node), node))
        end = state.find_end(first)
        if behind := state.list_behind(end):
            asked = {n: tokens for n, tokens in behind.items() if state.watched.get(n) != tokens}
            if not asked:
                return state, ()
            return replace(state, watched={**state.watched, **asked}), (Watch(tokens=asked),)
        tree = state.tree
        if not self.scores_levels:  # else it is complete once it is scored
            tree = tree.mark({first: NodeStatus.COMPLETE})
        complete = tuple(sorted((*state.complete, first)))
        starts = {node: start for node, start in state.starts.items() if node != first}
        state = replace(state, tree=tree, complete=complete, starts=starts, clock=end)
        if len(complete) == self.n:
            return self.vote(state)
        return self.vote(state, cut_by=BUDGET) if state.is_over_budget else self.check(state)

    def resume(self, state: CountedState) -> Move:
        """Begin the paths that the vote wants beyond the open ones."""
        drawn = len(state.complete) + len(state.starts)
        count = min(self.n - drawn, self.count_wanted(state) - len(state.starts))
        state = replace(state, phase=Phase.GENERATE)
        state, commands = self._begin(state, count) if count > 0 else (state, ())
        state, more = self._advance(state)
        return state, (*commands, *more)

    def count_wanted(self, state: CountedState) -> int:
        """How many paths should be open at once: see `measures.count_wanted`."""
        # Answers without a box do not count yet, since a later path may have a box.
        answers = [None if state.is_unboxed else state.tree[n].answer for n in state.complete]
        # Where no path has an answer that counts, the vote can't end soon, so begin all paths.
        return count_wanted(answers, self.n, self._lead.least) if any(answers) else self.n

    # ------------------------------------------------------------ the vote

    def count_progress(self, state: CountedState) -> int:
        return len(state.complete)

    def measure(self, tree: Tree, paths: Sequence[NodeId]) -> dict[str, float]:
        answers = [tree[node].answer for node in paths]
        values = {ENTROPY: measure_certainty(answers), LEAD: measure_lead(answers, self.n)}
        return {name: value for name, value in values.items() if value is not None}

    def list_unfinished(self, state: CountedState) -> Sequence[NodeId]:
        return tuple(state.starts)

    def finish(self, state: CountedState) -> Move:
        """Cancel the open paths, have the others scored, and choose."""
        commands: tuple[Command, ...] = ()
        if state.starts:
            nodes = tuple(state.starts)
            state = replace(state, tree=state.tree.cancel(nodes), starts={})
            commands = (Cancel(nodes=nodes),)
        if self.scores_levels and not state.is_concluded and self._list_unscored(state):
            scoring = replace(state, phase=Phase.SCORE)
            return scoring, (*commands, Score(nodes=state.complete))
        state, choice = Search.finish(self, state)
        return state, (*commands, *choice)

    def take_scores(self, state: CountedState, node: NodeId) -> Move:
        state = replace(state, tree=state.tree.mark({node: NodeStatus.COMPLETE}))
        return (state, ()) if self._list_unscored(state) else self.finish(state)

    def _list_unscored(self, state: CountedState) -> list[NodeId]:
        return [node for node in state.complete if state.tree[node].scores is None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedBestOfN(CountedSelfConsistency):
    """Best of n that stops by its counts; only the paths that ended by then have a vote."""

    name: ClassVar[str] = "best_of_n"
    scores_levels: ClassVar[bool] = True
    selection: str = "weighted"
