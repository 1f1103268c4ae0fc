"""Searches that work in levels: generate a level, score it, decide, and finally vote.

GENERATE --all generated--> SCORE --all scored--> decide: proceed, or vote (see `voting`)

A level is decided only when all of its results have arrived, so the order of arrival can't change
the decision. The policy is asked between two levels, about finished paths.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from flashedge.search.base import Command, Score
from flashedge.search.tree import ROOT, NodeStatus, Tree
from flashedge.search.voting import BUDGET, Phase, Search, SearchState
from flashedge.types import Limits, NodeId, Problem

Shares = tuple[tuple[NodeId, int], ...]
"""Pairs of (parent, number of children), in the order of expansion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A finished path of an open level, against the others of its family."""

    score: float
    finished: Sequence[float]
    """Scores of finished rivals. An unscored one counts with the best that it can get."""
    better: int
    """Those that are better, or can be."""
    growing: Sequence[float]
    """Best possible scores of the rivals that generate, the highest first. Each may end its path,
    and is then no rival, and takes no place of the width."""
    growing_better: int
    """Those that can be better: the first ones."""
    width: int
    """The width of the family if none of the growing rivals ends its path."""

    def list_ends(self) -> Iterator[tuple[int, int, int]]:
        """Yield (width, rank, number of rivals) for each number of growing rivals that may end.
        Those that can't be better end first, so the rank is the worst."""
        rivals = len(self.finished) + len(self.growing)
        for ended in range(len(self.growing) + 1):
            rank = self.better + min(self.growing_better, len(self.growing) - ended)
            yield self.width - ended, rank, rivals - ended


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelState(SearchState):
    level: tuple[NodeId, ...] = ()
    """The nodes of the current level."""
    outstanding: int = 0
    """Results of the current phase that have not arrived."""
    num_ended: int = 0
    """Nodes of the level whose path is known to end there."""
    planned: Shares = ()
    """The next level, while the policy decides whether it runs."""


Move = tuple[LevelState, tuple[Command, ...]]
"""A new state and the commands that follow from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelSearch(Search[LevelState]):
    """A search in levels. Subclasses decide what follows a level."""

    def start(self, problem: Problem, seed: int, limits: Limits) -> Move:
        ask_at = self.find_first_ask()
        state = LevelState(tree=Tree.from_seed(seed), limits=limits, ask_at=ask_at)
        return self.expand(state, ((ROOT, self.choose_initial_width(state)),))

    def choose_initial_width(self, state: LevelState) -> int:
        """Children of the root in the first level."""
        return self.n

    @abstractmethod
    def decide(self, state: LevelState) -> Move:
        """Continue after a level that is generated and scored."""

    def expand(self, state: LevelState, shares: Shares) -> Move:
        commands: list[Command] = []
        level: list[NodeId] = []
        for parent, count in shares:
            state, nodes, command = self.grow(state, parent, count)
            commands.append(command)
            level += nodes
        state = replace(
            state,
            phase=Phase.GENERATE,
            level=tuple(level),
            outstanding=len(level),
            num_ended=0,
            planned=(),
        )
        return state, tuple(commands)

    def take_segment(self, state: LevelState, node: NodeId) -> Move:
        ended = state.num_ended + self.ends_path(state, node)
        state = replace(state, outstanding=state.outstanding - 1, num_ended=ended)
        if state.outstanding:
            return state, ()
        if not self.scores_levels:
            return self.decide(state)
        scoring = replace(state, phase=Phase.SCORE, outstanding=len(state.level))
        return scoring, (Score(nodes=state.level),)

    def take_scores(self, state: LevelState, node: NodeId) -> Move:
        state = replace(state, outstanding=state.outstanding - 1)
        return (state, ()) if state.outstanding else self.decide(state)

    def proceed(self, state: LevelState, shares: Shares = ()) -> Move:
        """Start the next level. If the policy is due, ask it first whether the search goes on."""
        state = replace(state, planned=shares)
        if self.is_policy_due(state):
            return self.check(state)
        return self.resume(self.remember_checkpoint(state))

    def resume(self, state: LevelState) -> Move:
        return self.expand(state, state.planned)

    def stop(self, state: LevelState) -> Move:
        return self.vote(replace(self.settle_open(state, state.level), outstanding=0))

    def list_unfinished(self, state: LevelState) -> Sequence[NodeId]:
        return state.level


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepwise(LevelSearch):
    """Prunes and branches after every step. A level has one node for each path yet to be completed.
    Ref: arXiv 2509.00195 §3.1. Departures: a path that ends counts as complete, and the others
    share the remaining width; duplicates are dropped before paths are chosen."""

    branching: int = 4
    """Children per kept path. search-and-learn calls this beam_width."""
    max_step_tokens: int = 256
    max_steps: int = 40
    """Depth of the last step, which runs to the end of the path."""

    @abstractmethod
    def keep(self, state: LevelState, paths: Sequence[NodeId], width: int) -> Shares:
        """Choose the paths to continue, with their numbers of children. paths: at least one, all
        different, best first. The shares are at least 1 each and sum to at most `width`. Paths
        without a share are pruned; an empty result ends the search."""

    def count_certain_children(self, path: Standing) -> int:
        """The least number of children that `keep` gives to a path, however its rivals score and
        however many of them end or are missing. 0 promises nothing. See `early_commit`."""
        return 0

    def find_family(self, state: LevelState, node: NodeId) -> int:
        """Equal paths are duplicates if they share a family. Here all paths do."""
        return 0

    def limit_step(self, depth: int) -> int:
        return self.max_step_tokens

    def limit_children(self, state: LevelState) -> int:
        """A path with a high score may get all of the width."""
        return self.count_remaining(state) - state.num_ended

    def decide(self, state: LevelState) -> Move:
        """Settle the level, keep some paths and prune the rest. Then start a level, or vote."""
        state, unique = self.settle_level(state)
        width = self.count_remaining(state)
        shares = self.keep(state, unique, width) if unique and width else ()
        if not shares:
            return self.finish_tree(state)
        kept = {node for node, _ in shares}
        pruned = dict.fromkeys((n for n in unique if n not in kept), NodeStatus.PRUNED)
        state = replace(state, tree=state.tree.mark(pruned))
        if state.is_over_budget:
            return self.vote(state, cut_by=BUDGET)
        return self.proceed(state, shares)

    def count_remaining(self, state: LevelState) -> int:
        """Paths that the current tree has yet to complete."""
        return self.n - len(state.complete)

    def finish_tree(self, state: LevelState) -> Move:
        return self.vote(state)

    def settle_level(self, state: LevelState) -> tuple[LevelState, tuple[NodeId, ...]]:
        """Mark ended paths and duplicates. The second value holds the other paths, best first."""
        state, unique = self.settle(state, state.level, lambda n: self.find_family(state, n))
        return state, tuple(sorted(unique, key=lambda n: (-self.score_path(state, n), n)))


def apportion(weights: Sequence[float], total: int, *, least: int = 0) -> tuple[int, ...]:
    """weights: (k,) finite, >= 0 -> (k,) integers >= least with sum `total`. Each gets `least`; the
    rest is split by largest remainder, ties to the earlier, or evenly if all weights are 0. Raises
    ValueError if k is 0 or k * least > total."""
    rest = total - least * len(weights)
    if rest < 0 or not weights:
        raise ValueError(f"{total} can't be split {len(weights)} ways with at least {least} each")
    total_weight = math.fsum(weights)
    exact = [rest * w / total_weight if total_weight > 0 else rest / len(weights) for w in weights]
    shares = [math.floor(e) for e in exact]
    order = sorted(range(len(weights)), key=lambda i: (shares[i] - exact[i], i))
    for i in order[: rest - sum(shares)]:
        shares[i] += 1
    return tuple(least + s for s in shares)
