"""Monte Carlo tree search that keeps its simulations' nodes; rollouts one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from flashedge.certainty.rewards import mean_reward
from flashedge.search.level_state import BUDGET, LevelState, Move, Shares
from flashedge.search.stepwise import Stepwise
from flashedge.search.strategies.puct import logprob_priors, puct, uniform_priors
from flashedge.search.tree import ROOT, NodeStatus
from flashedge.types import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Mcts(Stepwise):
    """n rollouts. One rollout: PUCT leads from the root to a leaf; the leaf gets `branching`
    children, the one of highest reward is expanded next, until a path ends; its score is counted
    at every node of it.

    aggregate: how a trajectory's step scores become its reward (prod in the paper); c: weight of
    exploration; prior: logprob or uniform. Visit counts and values are not stored: they follow
    from `LevelState.rollouts`. Levels are the expansions of single nodes.
    Ref: arXiv 2604.00510 App. A (node-reusing MCTS); arXiv 2412.20993 App. A.
    Departures: a child without a visit counts with the reward that the verifier gave it, not 0; an
    ended path is rolled out once at most, and siblings of a trajectory that also ended take part in
    the choice; a tree without an open leaf ends the search before n rollouts.
    """

    c: float = 1.0
    prior: str = "logprob"

    @property
    def name(self) -> str:
        return "mcts"

    def first(self, state: LevelState) -> int:
        return self.branching

    def share(self, state: LevelState) -> int:
        return self.branching

    def family(self, state: LevelState, node: NodeId) -> int:
        parent = state.tree[node].parent
        assert parent is not None, "the root is in no level"
        return parent

    def keep(self, state: LevelState, paths: Sequence[NodeId], width: int) -> Shares:
        """The simulation's next step: the best child. None is pruned, no width is met."""
        return ((paths[0], self.branching),)

    def decide(self, state: LevelState) -> Move:
        """Go on with the best new child; where it ended, the rollout is over."""
        state, unique = self.settle(state)
        best = min(
            (n for n in state.level if state.tree[n].status is not NodeStatus.DUPLICATE),
            key=lambda node: (-self.score_of(state, node), node),
        )
        ended = state.tree[best].status is NodeStatus.COMPLETE
        if ended:
            state = replace(state, rollouts=(*state.rollouts, best))
            if len(state.rollouts) == self.n:
                return self.resume(state)
        if state.over_budget:
            return self.vote(state, cut_by=BUDGET)
        return self.proceed(state) if ended else self._expand(state, self.keep(state, unique, 0))

    def resume(self, state: LevelState) -> Move:
        """Begin the next rollout; those that lead to a path that has ended need no work."""
        while len(state.rollouts) < self.n:
            leaf = self.select(state)
            if leaf is None:
                break
            if state.tree[leaf].status is NodeStatus.ACTIVE:
                return self._expand(state, ((leaf, self.branching),))
            state = replace(state, rollouts=(*state.rollouts, leaf))
            if len(state.rollouts) == self.n:
                break
            state = self.note(state)
            if self.asks(state):
                if state.clustered != state.complete:
                    return self.proceed(state)
                state, goes_on = self.consult(state)
                if not goes_on:
                    return self.finish(state)
        tree = state.tree
        unopened = [
            n.id
            for n in tree.nodes.values()
            if n.status is NodeStatus.ACTIVE and not tree.children(n.id)
        ]
        tree = tree.mark(dict.fromkeys(unopened, NodeStatus.PRUNED))
        return self.vote(replace(state, tree=tree))

    # ------------------------------------------------------------ certainty

    def progress(self, state: LevelState) -> int:
        return len(state.rollouts)

    def counted(self, state: LevelState) -> Sequence[NodeId]:
        return state.rollouts or state.complete

    def reward(self, rewards: Iterable[float]) -> float | None:
        return mean_reward(rewards)

    # ------------------------------------------------------------ selection

    def visits(self, state: LevelState) -> Mapping[NodeId, int]:
        """N: rollouts through each node, the root included."""
        counted = Counter(node.id for end in state.rollouts for node in state.tree.path(end))
        counted[ROOT] = len(state.rollouts)
        return counted

    def values(self, state: LevelState) -> Mapping[NodeId, float]:
        """Sum of the rewards of the rollouts through each node."""
        total: dict[NodeId, float] = {}
        for end in state.rollouts:
            reward = self.score_of(state, end)
            for node in state.tree.path(end):
                total[node.id] = total.get(node.id, 0.0) + reward
        return total

    def select(self, state: LevelState) -> NodeId | None:
        """The leaf that PUCT leads to, ties to the older child; None when no leaf is open."""
        tree, visits, values = state.tree, self.visits(state), self.values(state)
        is_open = self._open(state)
        node = ROOT
        if not is_open[ROOT]:
            return None
        while children := tree.children(node):
            known = [c for c in children if c.status is not NodeStatus.DUPLICATE]
            segments = [c.segment for c in known if c.segment is not None]
            uniform = self.prior == "uniform"
            priors = uniform_priors(len(known)) if uniform else logprob_priors(segments)
            ranked: list[tuple[float, NodeId]] = []
            for child, prior in zip(known, priors, strict=True):
                n = visits.get(child.id, 0)
                q = values[child.id] / n if n else self.score_of(state, child.id)
                rank = puct(q, prior, visits=n, parent_visits=visits.get(node, 0), c=self.c)
                if is_open[child.id]:
                    ranked.append((-rank, child.id))
            node = min(ranked)[1]
        return node

    def _open(self, state: LevelState) -> Mapping[NodeId, bool]:
        """Whether a node is, or leads to, a leaf that a rollout can still go to."""
        rolled = set(state.rollouts)
        found: dict[NodeId, bool] = {}
        for node in reversed(tuple(state.tree.nodes.values())):  # children come after parents
            children = state.tree.children(node.id)
            if children:
                found[node.id] = any(found[c.id] for c in children)
            elif node.status is NodeStatus.COMPLETE:
                found[node.id] = node.id not in rolled
            else:
                found[node.id] = node.status is NodeStatus.ACTIVE
        return found
