"""What a policy would have done with a run that was never stopped: replay on its history."""

from __future__ import annotations

from dataclasses import dataclass

from flashedge.certainty.history import History
from flashedge.certainty.policies import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a run that ended somewhere had cost, and whether its answer was right. tokens: of the
    tree; overhead: of probes, which a run without a policy need not make."""

    right: bool
    tokens: int
    overhead: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One run at full compute. problem: runs of one problem are told apart by nothing else;
    cap: the progress's end; checkpoints: (k,) at every progress that the run came to; stops: (k,) what ending
    it there would have given; whole: what its own end gave."""

    problem: str
    cap: int
    checkpoints: History
    stops: tuple[Spent, ...]
    whole: Spent

    def __post_init__(self) -> None:
        if len(self.stops) != len(self.checkpoints):
            raise ValueError(f"{len(self.checkpoints)} checkpoints, {len(self.stops)} stops")


def stopped_at(checkpoints: History, policy: Policy, cap: int) -> int | None:
    """Index of the checkpoint at which `policy` ends the run; None: it goes to its own end.

    The policy is told what it would have been told: the checkpoints at which it would have been
    asked, the first at or beyond the progress that its last allotment came to.
    """
    asked: History = ()
    ask_at = max(1, policy.allot(asked, cap).more)
    for i, checkpoint in enumerate(checkpoints):
        if checkpoint.progress < ask_at:
            continue
        asked = (*asked, checkpoint)
        more = policy.allot(asked, cap).more
        if more <= 0:
            return i
        ask_at = checkpoint.progress + more
    return None


def replayed(trace: Trace, policy: Policy) -> Spent:
    """What the run would have been under `policy`."""
    at = stopped_at(trace.checkpoints, policy, trace.cap)
    return trace.whole if at is None else trace.stops[at]
