"""The exits that end MCTS before its n rollouts, apart from the policy. Each has its own switch.

- positive: a path that ended is good enough
- negative: every leaf is futile. A path's reward is the product or the minimum of its step scores,
  so a leaf's reward bounds everything below it
- cut rollouts: a rollout is cancelled as soon as its path is futile, and none starts at a futile
  leaf. A cut rollout counts among n, but leaves no visit. The search ends once all leaves are
  futile.

Departures: no search exits before a path has ended, so that there is an answer. The selective exit
of §4.3 lost right answers on held-out problems and is left out (docs/results/mcts.md). Ref: arXiv
2604.00510 §3.1, §3.4, §4.1.
"""

from dataclasses import dataclass, replace

from flashedge.errors import RequestError
from flashedge.search.mcts.rollouts import Flight, MctsState
from flashedge.types import NodeId

REWARD, FUTILITY = "reward", "futility"
"""`cut_by` of a search that found a good path, or that can no longer find one."""
BOUNDING = ("prod", "min")
"""The aggregates by which a path bounds what grows from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exits:
    """The switches and thresholds. The defaults were chosen on 200 calibration problems of the
    bundled pair (`scripts/bench/mcts/choose_thresholds.py`): `accept` loses at most half a point of
    the right answers, `futile` loses none. Choose again for another verifier."""

    positive_exit: bool = False
    accept: float = 0.83
    """Reward of a finished path at which the positive exit ends the search."""
    negative_exit: bool = False
    cut_rollouts: bool = False
    futile: float = 0.1
    """τ: a leaf whose reward is less than this is futile."""

    def check(self, aggregate: str) -> None:
        """Raises RequestError if a negative exit is on and a leaf's reward bounds nothing."""
        if (self.negative_exit or self.cut_rollouts) and aggregate not in BOUNDING:
            raise RequestError(
                f"negative exits need an aggregate that only falls as a path grows, and"
                f" {aggregate!r} can rise again: a leaf below the threshold could still become a"
                " good path",
                hint=f"set aggregate to {' or '.join(BOUNDING)}, or switch negative_exit and"
                " cut_rollouts off",
                param="aggregate",
            )

    def count_leaves(self, state: MctsState, node: NodeId) -> MctsState:
        """Update `num_viable` after an expansion of `node`."""
        if not self.negative_exit:
            return state
        rewards = [state.statistics[child.id].reward for child in state.tree.list_kept(node)]
        new = sum(reward >= self.futile for reward in rewards)
        old = state.statistics[node].reward >= self.futile
        return replace(state, num_viable=state.num_viable + new - old)

    def find_reason(self, state: MctsState) -> str | None:
        """Why the search ends now: REWARD or FUTILITY. None if it goes on."""
        if not state.complete:
            return None
        if self.positive_exit and state.best_reward >= self.accept:
            return REWARD
        return FUTILITY if self.negative_exit and not state.num_viable else None

    def is_cut(self, state: MctsState, node: NodeId) -> bool:
        """Whether a rollout that would start at this leaf is cut."""
        return self._cuts(state) and state.statistics[node].reward < self.futile

    def list_cut(self, state: MctsState) -> tuple[Flight, ...]:
        """The rollouts in flight to cancel."""
        cuts = self._cuts(state)
        return tuple(flight for flight in state.flights if cuts and flight.reward < self.futile)

    def _cuts(self, state: MctsState) -> bool:
        """Whether rollouts are cut yet. The first path always runs to its end."""
        return self.cut_rollouts and bool(state.complete)
