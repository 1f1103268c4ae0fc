"""How many runs go at once: as many as the KV memory holds and the engines can use.

A run is admitted if nothing else runs, or if all of these hold:

- fewer than `max_running` runs are running
- its predicted KV fits together with what the running ones are predicted to need
- the generator's batch has room for its sequences, and gains from them: if twice the batch brings
  less than a tenth more tokens a second, running one after the other is better for the mean
  latency and no worse for the last run.

Runs start in the order of their programs. One that does not fit holds the others back: letting
smaller ones pass would starve it.
"""

from collections.abc import Collection
from dataclasses import dataclass

from flashedge.scheduling.costs import BatchTime
from flashedge.scheduling.programs.program import Member, find_figures

UNPREDICTED_SHARE = 0.25
"""Share of `max_tokens` that an output without a prediction is assumed to need. Chosen by hand: few
outputs reach their limit, and with the whole limit runs would wait beside free memory."""
LEAST_GAIN = 0.1
"""Share of tokens a second that twice the batch must add. Chosen by hand: 1 is what it adds while
sequences cost nothing, and near 0 runs would only slow each other down."""
FADING = 0.2
"""Weight of a new KV share that is smaller than the average. Chosen by hand: with 0.02 an early
large share would bind for hundreds of runs, and with 1 only the last run would count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    kv_tokens: int
    """Tokens of which each engine can hold the KV."""
    max_running: int
    """Most runs at once, however large the memory is."""
    useful_sequences: int
    """The generator's batch as far as larger ones are worth it (`find_useful_batch`)."""
    step_s: BatchTime | None = None
    """Seconds of a decode step of the generator, by its batch. None where they are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a run is predicted to hold at its peak."""

    kv_tokens: int
    sequences: int
    """Sequences in the generator's batch."""


def predict_need(run: Member) -> Need:
    """Predict what a run needs for the sequences that it draws at once. Outputs that have ended
    need nothing, since the cache may drop them."""
    if run.lengths is None:
        one = run.max_tokens * UNPREDICTED_SHARE
    else:
        one = find_figures(run.lengths, run.max_tokens, 0).expected
    held = round(run.kv_share * run.sequences * one)
    return Need(kv_tokens=run.prompt_tokens + held, sequences=run.sequences)


def can_start(need: Need, running: Collection[Need], capacity: Capacity) -> bool:
    """Whether a run with this need is admitted beside the running ones."""
    needs = need, *running
    return len(needs) <= capacity.max_running and (
        not running
        or (
            sum(each.kv_tokens for each in needs) <= capacity.kv_tokens
            and sum(each.sequences for each in needs) <= capacity.useful_sequences
        )
    )


def find_useful_batch(step_s: BatchTime, max_batch: int) -> int:
    """The batch up to which each doubling raises the tokens a second by at least `LEAST_GAIN`."""
    batch = 1
    while batch < max_batch:
        larger = min(2 * batch, max_batch)
        gain = (larger / step_s(larger)) / (batch / step_s(batch)) - 1.0
        if gain < LEAST_GAIN * (larger / batch - 1.0):
            break
        batch = larger
    return batch


class KvShares:
    """What part of its paths' tokens a search of each strategy holds at its peak, in (0, 1]. Paths
    share their beginnings, and pruned ones are dropped. The share is measured on runs that finish;
    before the first one it is 1."""

    def __init__(self) -> None:
        self._shares: dict[str, float] = {}

    def find(self, strategy: str) -> float:
        return self._shares.get(strategy, 1.0)

    def learn(self, strategy: str, share: float) -> None:
        """Note the share of a run. A larger one than before counts in full, since too little room
        costs more than too much."""
        before = self._shares.get(strategy, share)
        self._shares[strategy] = max(share, before + FADING * (share - before))
