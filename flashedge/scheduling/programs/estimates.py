"""Estimates for users, about runs and programs that are not over: their place in the queue, their
predicted lengths, and when they start.

Started runs share the generator's speed in proportion to their sequences, since a batch draws all
of its sequences equally fast. As many are assumed to run at once as now: when one is over, the
next waiting run starts. That ignores that two small runs may fit where one large run was.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp

from flashedge.scheduling.costs import BatchTime
from flashedge.scheduling.programs.program import Member, Program
from flashedge.scheduling.rollouts.allocation import BoostState

MEMORY_S = 20.0
"""Seconds with running searches after which the weight of measured tokens is 1/e. Chosen by hand:
with 2 s one slow level would change all estimates; with 200 s they would lag behind the load."""
LEAST_S = 0.5
"""How long searches must have run before their speed counts as known. Chosen by hand: after 0.05 s
one step would decide; with 5 s the first runs would have no estimate."""

Speed = Callable[[int], float]
"""Takes the sequences of a batch. Returns the tokens a second of the whole batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEstimate:
    """One run at this moment. What is not known, or does not apply, is None."""

    position: int | None = None
    """Runs that wait before it."""
    starts_in_s: float | None = None
    median_tokens: float | None = None
    """Predicted median length of one of its paths."""
    tail_tokens: float | None = None
    """The length that a tenth of its paths exceeds, as predicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramEstimate:
    """One program at this moment."""

    pair: str
    key: str
    client: str
    kind: str
    place: int | None
    """Programs in the queue that go before it. None for one that has started, and for a plain
    request, which the engines take as soon as they have room."""
    has_started: bool
    """Whether a search of it runs, or the first output of a request has come."""
    waited_s: float
    """From its arrival to its start, or until now."""
    median_tokens: float | None
    """Predicted median length of one of its outputs."""
    tail_tokens: float | None
    """The length that a tenth of its outputs exceeds, as predicted (value at risk)."""
    left_tokens: float
    """Tokens that it is still expected to generate, all outputs together."""
    starts_in_s: float | None
    """Seconds until its first run is expected to start. None where that is not known, or where it
    is not in the queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """The programs and boosted runs of all pairs at this moment."""

    policy: str
    programs: tuple[ProgramEstimate, ...]
    """In their order."""
    boosts: tuple[BoostState, ...] = ()
    boost_running_s: float = 0.0
    """Seconds since the daemon's start with a boosted run under way."""
    boost_open_s: float = 0.0
    """Those of boost_running_s in which a boosted run might have more than one rollout."""


def estimate_programs(
    pair: str, programs: Iterable[Program], now_s: float, queued: Mapping[str, float | None]
) -> list[ProgramEstimate]:
    """Estimate a pair's programs, given in their order. queued: seconds until the start, by the
    keys of the programs that have a run in the queue."""
    found: list[ProgramEstimate] = []
    before = 0
    for program in programs:
        is_queued = program.started_s is None and program.key in queued
        median, tail = program.predict_output()
        end_s = now_s if program.started_s is None else program.started_s
        found.append(
            ProgramEstimate(
                pair=pair,
                key=program.key,
                client=program.client,
                kind=str(program.kind),
                place=before if is_queued else None,
                has_started=program.started_s is not None,
                waited_s=max(0.0, end_s - program.arrived_s),
                median_tokens=median,
                tail_tokens=tail,
                left_tokens=program.work.expected,
                starts_in_s=queued[program.key] if is_queued else None,
            )
        )
        before += is_queued
    return found


def predict_starts(
    running: Iterable[Member], waiting: Sequence[Member], speed: Speed | None
) -> list[float | None]:
    """Seconds until each waiting run starts, in the order of `waiting`, the next one first. None
    where that is not known: without a speed, or after a run whose length is not predicted."""
    found: list[float | None] = [None] * len(waiting)
    running = list(running)
    if speed is None or any(run.lengths is None for run in running):
        return found
    # Tokens that each sequence draws from now on. A run is over when that reaches its own share.
    drawn, passed_s = 0.0, 0.0
    sequences = sum(run.sequences for run in running)
    ends = [(run.work.expected / run.sequences, run.sequences) for run in running]
    heapq.heapify(ends)
    for place, run in enumerate(waiting):
        if ends:
            end, ended = heapq.heappop(ends)
            passed_s += (end - drawn) * sequences / speed(sequences)
            drawn, sequences = end, sequences - ended
        found[place] = passed_s
        if run.lengths is None:
            break
        heapq.heappush(ends, (drawn + run.work.expected / run.sequences, run.sequences))
        sequences += run.sequences
    return found


class SearchSpeed:
    """How fast searches draw tokens, measured while they run. The cost curve of the generator says
    how the speed grows with the batch. Searches get only a share of that speed, since they wait for
    slow paths and for the verifier, and share the engine with chats. This share is measured. Older
    tokens fade, but not while no search runs."""

    def __init__(self) -> None:
        self._step_s: BatchTime | None = None
        self._sequences = 0
        self._seen_s = 0.0
        self._tokens = self._curve_tokens = self._busy_s = 0.0  # all fade

    def set_curve(self, step_s: BatchTime | None) -> None:
        """step_s: seconds of a decode step by its batch. None takes every batch as equally fast."""
        if (step_s is None) != (self._step_s is None):  # `_curve_tokens` has another unit
            self._tokens = self._curve_tokens = self._busy_s = 0.0
        self._step_s = step_s

    def add_sequences(self, sequences: int, now_s: float) -> None:
        """Add sequences that a search starts to draw. A negative number removes them again."""
        self._pass_time(now_s)
        self._sequences += sequences

    def add_tokens(self, tokens: int, now_s: float) -> None:
        self._pass_time(now_s)
        self._tokens += tokens

    def measure(self, now_s: float) -> Speed | None:
        """The speed of searches. None if they ran for less than LEAST_S or drew nothing."""
        self._pass_time(now_s)
        if self._busy_s < LEAST_S or not self._tokens:
            return None
        share = self._tokens / self._curve_tokens
        return lambda sequences: share * self._read_curve(sequences)

    def _read_curve(self, sequences: int) -> float:
        """Tokens a second by the curve. Without one it is 1, and the share is the speed itself."""
        return 1.0 if self._step_s is None else sequences / self._step_s(sequences)

    def _pass_time(self, now_s: float) -> None:
        passed_s = max(0.0, now_s - self._seen_s)
        self._seen_s = now_s
        if self._sequences:
            kept = exp(-passed_s / MEMORY_S)
            counted_s = MEMORY_S * (1.0 - kept)
            self._tokens *= kept
            self._busy_s = self._busy_s * kept + counted_s
            self._curve_tokens = (
                self._curve_tokens * kept + self._read_curve(self._sequences) * counted_s
            )
