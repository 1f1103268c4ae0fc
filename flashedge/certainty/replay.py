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
    cap: the knob's end; readings: (k,) at every knob that the run came to; stops: (k,) what ending
    it there would have given; whole: what its own end gave."""

    problem: str
    cap: int
    readings: History
    stops: tuple[Spent, ...]
    whole: Spent

    def __post_init__(self) -> None:
        if len(self.stops) != len(self.readings):
            raise ValueError(f"{len(self.readings)} readings, {len(self.stops)} stops")


def stopped_at(readings: History, policy: Policy, cap: int) -> int | None:
    """Index of the reading at which `policy` ends the run; None: it goes to its own end.

    The policy is told what it would have been told: the readings at which it would have been
    asked, the first at or beyond the knob that its last allotment came to.
    """
    asked: History = ()
    ask_at = max(1, policy.allot(asked, cap).more)
    for i, reading in enumerate(readings):
        if reading.knob < ask_at:
            continue
        asked = (*asked, reading)
        more = policy.allot(asked, cap).more
        if more <= 0:
            return i
        ask_at = reading.knob + more
    return None


def replayed(trace: Trace, policy: Policy) -> Spent:
    """What the run would have been under `policy`."""
    at = stopped_at(trace.readings, policy, trace.cap)
    return trace.whole if at is None else trace.stops[at]
