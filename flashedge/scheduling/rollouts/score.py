"""How urgently a run wants more rollouts: the DOP score (degree of parallelism).

S = log(1 + Δt) + β · [best reward / acceptance threshold > 0.9]

The first term favours what has been here for long, so that nothing starves; its logarithm keeps one
old run from taking everything. The second favours runs that are about to end early.

Ref: arXiv 2604.00510 §4.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log1p

from flashedge.scheduling.rollouts.contender import Contender


@dataclass(frozen=True, slots=True, kw_only=True)
class DopScore:
    """Scores contenders. The paper gives no value of β."""

    beta: float = 2.0
    """What being near to its end is worth. A run near to its end goes before all that are younger
    than e^β times its age."""

    near: float = 0.9
    """From this share of the acceptance threshold on, a run is near to its end."""

    def rate(self, run: Contender, now_s: float) -> float:
        """S of a run, at least 0."""
        is_near = run.nearness is not None and run.nearness > self.near
        return log1p(max(0.0, now_s - run.arrived_s)) + (self.beta if is_near else 0.0)

    def rank(self, runs: list[Contender], now_s: float) -> list[Contender]:
        """The runs by falling score, equal ones by arrival, then by key."""
        return sorted(runs, key=lambda run: (-self.rate(run, now_s), run.arrived_s, run.key))
