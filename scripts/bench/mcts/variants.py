"""The searches that the study compares, with what was chosen for them on calibration problems."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flashedge.runtime.request.validation import Request
from flashedge.scheduling.rollouts.allocation import Allocator
from flashedge.scheduling.rollouts.limiter import RolloutLimiter
from flashedge.types import Problem
from scripts.bench.mcts.load import Boost

N, BRANCHING, PARALLEL = 16, 4, 4
POSITIVE: Mapping[str, Any] = {"positive_exit": True, "accept": 0.83}
"""The lowest threshold that loses no more than half a point of the calibration problems."""
NEGATIVE: Mapping[str, Any] = {"negative_exit": True, "futile": 0.1}
"""Strict: a search ends only when the bound on every leaf says so. It lost nothing."""
CUT: Mapping[str, Any] = {**NEGATIVE, "cut_rollouts": True}
ONE_THRESHOLD: Mapping[str, Any] = {"futile": POSITIVE["accept"]}
"""As in arXiv 2604.00510 §3.4: futile is what can no longer be accepted."""

BOOST = Boost(allocator=Allocator(), limiter=RolloutLimiter())
"""As the product boosts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A way to search."""

    about: str
    options: Mapping[str, Any] = field(default_factory=dict)
    strategy: str = "mcts"
    boost: Boost | None = None
    paths: int = 8
    """Of beam search."""

    def build_spec(self) -> Request:
        """The request of every search, but for its problem and seed."""
        usual: dict[str, Any] = {"n": N, "aggregate": "prod", "selection": "best"}
        if self.strategy == "beam":
            usual = {"n": self.paths}
        return Request(
            problem=Problem.from_text("run 0"),
            pair="simulated",
            strategy=self.strategy,
            branching=BRANCHING,
            max_step_tokens=1024,
            max_path_tokens=3900,
            options=self.options,
            **usual,
        )


VARIANTS: Mapping[str, Variant] = {
    "serial": Variant(about="one rollout after the other: the naive twin"),
    "parallel": Variant(about="four rollouts at once, no exits", options={"parallel": PARALLEL}),
    "PE": Variant(about="serial, ends with a good path", options=POSITIVE),
    "PE+NE": Variant(about="and without a viable leaf", options={**POSITIVE, **NEGATIVE}),
    "PE+NE+cut": Variant(about="and cancels futile rollouts", options={**POSITIVE, **CUT}),
    "boost": Variant(
        about="and with boosting within the limit",
        options={**POSITIVE, **CUT, "boost": True},
        boost=BOOST,
    ),
    "beam-8": Variant(about="beam search of 8 paths", strategy="beam"),
}
