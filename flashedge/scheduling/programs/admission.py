"""How many runs go at once: as many as the KV memory holds and the engines can use.

A run is admitted where all of these hold, and always where nothing else runs:

- its predicted KV fits together with what the running ones are predicted to need
- the engine's batch has places for its sequences
- the batch gains from it: twice the batch must bring at least a tenth more tokens a second, or else
  running one after the other is better for the mean and no worse for the last.

Runs start in the order of their programs. One that does not fit holds the others back: letting
smaller ones pass would starve it.
"""

from collections.abc import Collection
from dataclasses import dataclass

from flashedge.scheduling.costs import BatchTime
from flashedge.scheduling.programs.program import Member, find_figures

UNPREDICTED_SHARE = 0.25
"""Share of `max_tokens` that an output without a prediction is assumed to need."""
LEAST_GAIN = 0.1
"""What twice the batch must bring in sequences a second: a tenth more."""
FADING = 0.2
"""How much of a smaller KV share counts at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    kv_tokens: int
    """Tokens whose KV both engines hold together."""

    max_running: int
    """Most runs at once, however large the memory is."""

    useful_sequences: int
    """Sequences up to which twice as many bring a tenth more tokens a second, at most its batch."""

    step_s: BatchTime | None = None
    """Seconds of a decode step of the generator, by its batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a run is predicted to hold at its peak."""

    kv_tokens: int
    sequences: int


def predict_need(run: Member) -> Need:
    """Finished outputs need nothing: the cache may drop them."""
    if run.lengths is None:
        one = run.max_tokens * UNPREDICTED_SHARE
    else:
        one = find_figures(run.lengths, run.max_tokens, 0).expected
    held = round(run.kv_share * run.sequences * one)
    return Need(kv_tokens=run.prompt_tokens + held, sequences=run.sequences)


def can_start(need: Need, running: Collection[Need], capacity: Capacity) -> bool:
    needs = need, *running
    return len(needs) <= capacity.max_running and (
        not running
        or (
            sum(each.kv_tokens for each in needs) <= capacity.kv_tokens
            and sum(each.sequences for each in needs) <= capacity.useful_sequences
        )
    )


def find_useful_batch(step_s: BatchTime, max_batch: int) -> int:
    """The batch up to which each doubling raises the sequences a second by `LEAST_GAIN`."""
    batch = 1
    while batch < max_batch:
        larger = min(2 * batch, max_batch)
        gain = (larger / step_s(larger)) / (batch / step_s(batch)) - 1.0
        if gain < LEAST_GAIN * (larger / batch - 1.0):
            break
        batch = larger
    return batch


class KvShares:
    """What part of its paths' tokens a search of each strategy holds at its peak, in (0, 1].

    Paths share their beginnings, and pruned ones are dropped: a beam search holds a third of what
    as many whole paths would. Measured on runs that finish; 1 before.
    """

    def __init__(self) -> None:
        self._shares: dict[str, float] = {}

    def find(self, strategy: str) -> float:
        return self._shares.get(strategy, 1.0)

    def learn(self, strategy: str, share: float) -> None:
        """A larger part than before counts in full: too little room costs more than too much."""
        before = self._shares.get(strategy, share)
        self._shares[strategy] = max(share, before + FADING * (share - before))
