"""Searches that prune and branch after each step: beam search, three variants of it, and REBASE."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

from flashedge.search.aggregates import softmax
from flashedge.search.level import LevelState, Move, Shares, Standing, Stepwise, apportion
from flashedge.search.tree import ROOT
from flashedge.search.voting import BUDGET
from flashedge.types import NodeId

ROUNDING = 1e-9
"""Subtracted from a share before it is rounded down, since the sums here and in `apportion` may
differ in the last bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearch(Stepwise):
    """Keep the best width / branching paths (rounded up), with equal shares of the width, until n
    paths are complete. The best paths get the remainder. Ref: search-and-learn's `beam_search`;
    arXiv 2509.00195 §3.1."""

    name: ClassVar[str] = "beam"

    def keep(self, state: LevelState, paths: Sequence[NodeId], width: int) -> Shares:
        kept = paths[: -(-width // self.branching)]
        each, extra = divmod(width, len(kept))
        return tuple((node, each + (i < extra)) for i, node in enumerate(kept))

    def count_certain_children(self, path: Standing) -> int:
        def share(width: int, rank: int, rivals: int) -> int:
            kept = min(-(-width // self.branching), rivals + 1)
            return -(-(width - rank) // kept) if rank < kept else 0

        return min(share(*end) for end in path.list_ends())

    def limit_children(self, state: LevelState) -> int:
        # dataclass(slots=True) makes a new class, which zero-argument super() does not know.
        return min(self.branching, Stepwise.limit_children(self, state))


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicBranching(Stepwise):
    """Keep as many paths as beam search. Each gets one child, and the rest of the width is split in
    proportion to the scores. Ref: arXiv 2509.00195 §3.1 and Fig. 11 ("each beam branches
    proportionally to its verifier score"). Departure: shares are rounded so that the width is met
    exactly."""

    name: ClassVar[str] = "dynamic_branching"

    def keep(self, state: LevelState, paths: Sequence[NodeId], width: int) -> Shares:
        kept = paths[: -(-width // self.branching)]
        weights = [max(0.0, self.score_path(state, node)) for node in kept]
        return tuple(zip(kept, apportion(weights, width, least=1), strict=True))

    def count_certain_children(self, path: Standing) -> int:
        # Best rivals first, as if none ended: their sums are the largest that can be.
        sums = list(accumulate(sorted([*path.finished, *path.growing], reverse=True), initial=0.0))

        def share(width: int, rank: int, rivals: int) -> int:
            kept = min(-(-width // self.branching), rivals + 1)
            if rank >= kept:
                return 0
            total = path.score + sums[kept - 1]
            part = path.score / total if total > 0 else 1 / kept
            return 1 + max(0, math.floor((width - kept) * part - ROUNDING))

        return min(share(*end) for end in path.list_ends())


@dataclass(frozen=True, slots=True, kw_only=True)
class VaryingGranularity(BeamSearch):
    """Beam search with short steps first and long steps later: paths are pruned often at the start,
    where most of them go wrong. `max_step_tokens` is not used. Ref: arXiv 2509.00195 §3.1 and Fig.
    11 (64 tokens for the first 3 steps, 2,048 thereafter)."""

    name: ClassVar[str] = "varying_granularity"
    short_steps: int = 3
    short_step_tokens: int = 64
    long_step_tokens: int = 2048

    def limit_step(self, depth: int) -> int:
        return self.short_step_tokens if depth < self.short_steps else self.long_step_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Dvts(BeamSearch):
    """Search n / branching subtrees of `branching` paths each (the last may have fewer).

    The root's children 0 … branching-1 start the first subtree, the next ones the second, and so
    on. Each subtree completes its own paths. Ref: search-and-learn's `dvts`; arXiv 2509.00195 §3.1
    (diverse selection). Departures: after a path ends, its subtree continues with the remaining
    width; paths of two subtrees are never duplicates.
    """

    name: ClassVar[str] = "dvts"

    def find_family(self, state: LevelState, node: NodeId) -> int:
        return state.tree.path(node)[0].index // self.branching

    def keep(self, state: LevelState, paths: Sequence[NodeId], width: int) -> Shares:
        done = Counter(self.find_family(state, node) for node in state.complete)
        best: dict[int, NodeId] = {}
        for node in paths:
            best.setdefault(self.find_family(state, node), node)
        sizes = {t: min(self.branching, self.n - t * self.branching) for t in best}
        return tuple((best[t], sizes[t] - done[t]) for t in sorted(best))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebase(Stepwise):
    """Split the width over all paths by the softmax of their rewards: a path with reward r gets
    width * exp(r / T) / sum of exp(r / T) over all paths. A path without a child is pruned.

    `branching` is not used. Ref: arXiv 2412.20993 App. A, Tables 1 and 3. Departures: shares are
    rounded by largest remainder, ties to the better path, so that they sum to the width; finished
    paths are not counted in the width any more.
    """

    name: ClassVar[str] = "rebase"
    temperature: float = 0.2
    """T. 1 is the plain softmax of the paper. Chosen by hand: with 1 a reward of 1 gets only e
    times the share of a reward of 0; with 0.02 the best path would get nearly everything."""
    width: int = 0
    """Paths per tree. 0 puts all n in one tree. Its answers arrive together, so that an early exit
    saves little."""

    def choose_initial_width(self, state: LevelState) -> int:
        return min(self.width or self.n, self.n)

    def keep(self, state: LevelState, paths: Sequence[NodeId], width: int) -> Shares:
        weights = softmax([self.score_path(state, node) for node in paths], self.temperature)
        shares = zip(paths, apportion(weights, width), strict=True)
        return tuple((node, count) for node, count in shares if count)

    def count_certain_children(self, path: Standing) -> int:
        # Let all growing rivals be as good as the best of them can be. Each one that ends takes the
        # same from the width and from the sum of weights, so the share is least where none has
        # ended, or all.
        growing = [path.growing[0]] * len(path.growing) if path.growing else []
        full = softmax([path.score, *path.finished, *growing], self.temperature)[0]
        alone = softmax([path.score, *path.finished], self.temperature)[0]
        least = min(full * path.width, alone * (path.width - len(growing)))
        # The best path gets a child: where its share is below 1, so are all, and it comes first.
        is_best = path.better + path.growing_better == 0
        return max(int(is_best), math.floor(least - ROUNDING))

    def count_remaining(self, state: LevelState) -> int:
        """Paths that the current tree has yet to complete."""
        done, width = len(state.complete), self.choose_initial_width(state)
        return min(self.n, (done // width + 1) * width) - done

    def finish_tree(self, state: LevelState) -> Move:
        left = self.n - len(state.complete)
        if not left:
            return self.vote(state)
        if state.is_over_budget:
            return self.vote(state, cut_by=BUDGET)
        return self.proceed(state, ((ROOT, min(left, self.choose_initial_width(state))),))
