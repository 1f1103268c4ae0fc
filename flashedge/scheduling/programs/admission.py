"""How many programs run at once: as many as the KV memory holds and the engines can use.

A program is admitted where all of these hold, and always where nothing else runs:

- its predicted KV fits beside what the running programs are predicted to need
- the engine's batch has places for its sequences
- the batch gains from it: twice the batch must bring at least a tenth more tokens a second. Where
  it does not, more programs at once only make each of them slower, and running them one after the
  other is better for the mean and no worse for the last.

Programs start in the order of the board. One that does not fit holds the others back: letting
smaller ones pass would starve it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from flashedge.scheduling.costs import BatchTime
from flashedge.scheduling.programs.program import Program
from flashedge.scheduling.programs.work import find_figures

UNPREDICTED_SHARE = 0.25
"""Share of `max_tokens` that an output without a prediction is taken to need."""
LEAST_GAIN = 0.1
"""What twice the batch must bring in sequences a second: a tenth more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What the engines have room for."""

    kv_tokens: int
    """Tokens whose KV both engines hold together."""

    max_running: int
    """Most programs at once, whatever the memory."""

    useful_sequences: int
    """Sequences up to which twice as many bring a tenth more tokens a second, at most its batch."""

    step_s: BatchTime | None = None
    """Seconds of a decode step of the generator, by its batch. None where it is not known."""

    is_assumed: bool = False
    """Whether step_s is only assumed: good for estimates, but nobody may be made to wait by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a program is predicted to hold at its peak."""

    kv_tokens: int
    sequences: int

    def __add__(self, other: Need) -> Need:
        return Need(
            kv_tokens=self.kv_tokens + other.kv_tokens, sequences=self.sequences + other.sequences
        )


def predict_need(program: Program) -> Need:
    """Predict what a program needs whose outputs share a prompt, and more as far as `kv_share`
    says. Finished outputs need nothing: the cache may drop them."""
    if program.lengths is None:
        one = program.max_tokens * UNPREDICTED_SHARE
    else:
        one = find_figures(program.lengths, program.max_tokens, 0).expected
    sequences = program.sequences
    held = round(program.kv_share * sequences * one)
    return Need(kv_tokens=program.prompt_tokens + held, sequences=sequences)


def can_start(need: Need, running: Collection[Need], capacity: Capacity) -> bool:
    """Whether a program may start beside those that run."""
    if len(running) >= capacity.max_running:
        return False
    after = sum(running, need)
    return not running or (
        after.kv_tokens <= capacity.kv_tokens and after.sequences <= capacity.useful_sequences
    )


def find_useful_batch(step_s: BatchTime, max_batch: int, least_gain: float = LEAST_GAIN) -> int:
    """The batch up to which more sequences are worth it: each doubling raises the sequences a
    second by at least `least_gain`. step_s: seconds of a decode step of a batch."""
    batch = 1
    while batch < max_batch:
        larger = min(2 * batch, max_batch)
        gain = (larger / step_s(larger)) / (batch / step_s(batch)) - 1.0
        if gain < least_gain * (larger / batch - 1.0):
            break
        batch = larger
    return batch
