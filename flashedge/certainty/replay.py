"""Replay: what a policy would have done with a run that was never stopped."""

from __future__ import annotations

from dataclasses import dataclass

from flashedge.certainty.history import History
from flashedge.certainty.policies import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    right: bool
    tokens: int
    overhead: int = 0
    """Tokens of probes, which a run without a policy does not make."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTrace:
    """One run at full compute, ready for replay. Raises ValueError unless stops fit checkpoints."""

    problem: str
    cap: int
    """The progress at which the run ends anyway."""
    checkpoints: History
    """(k,) One at every progress that the run reached."""
    stops: tuple[Ending, ...]
    """(k,) How the run would have ended at each checkpoint."""
    whole: Ending

    def __post_init__(self) -> None:
        if len(self.stops) != len(self.checkpoints):
            raise ValueError(f"{len(self.checkpoints)} checkpoints, {len(self.stops)} stops")


def find_stop(checkpoints: History, policy: Policy, cap: int) -> int | None:
    """Index of the checkpoint at which `policy` stops the run; None if it never does.

    The policy sees only what it would have seen in a live run: the first checkpoint at or beyond
    the progress of each allotment.
    """
    seen: History = ()
    due = max(1, policy.allot(seen, cap).more)
    for i, checkpoint in enumerate(checkpoints):
        if checkpoint.progress < due:
            continue
        seen = (*seen, checkpoint)
        more = policy.allot(seen, cap).more
        if more <= 0:
            return i
        due = checkpoint.progress + more
    return None


def replay(trace: RunTrace, policy: Policy) -> Ending:
    at = find_stop(trace.checkpoints, policy, trace.cap)
    return trace.whole if at is None else trace.stops[at]


def end_at(trace: RunTrace, progress: int) -> Ending | None:
    """How the run would have ended with `progress` as its cap; None if it never got there.

    Exact where runs with different caps begin alike: self-consistency, MCTS, and REBASE in trees
    whose `width` divides the cap. Elsewhere it is the larger run, ended early.
    """
    reached = (i for i, c in enumerate(trace.checkpoints) if c.progress >= progress)
    at = next(reached, None)
    return None if at is None else trace.stops[at]
