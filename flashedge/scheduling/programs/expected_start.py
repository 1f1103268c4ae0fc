"""When a waiting run is expected to start.

The runs that have started share the generator's speed, each by the number of its outputs, since a
batch draws all of its sequences equally fast. As many run at once as do now: when one is over, the
next waiting run starts. That ignores that two small runs may fit where one large run was.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWork:
    """What a run still generates."""

    left_tokens: float | None
    """Of all its outputs, as expected. None where nothing predicts their length."""

    outputs: int
    """Outputs that it draws at once."""


def predict_starts(
    running: Iterable[RunWork],
    waiting: Sequence[RunWork],
    tokens_per_s: Callable[[int], float] | None,
) -> list[float | None]:
    """Seconds until each waiting run starts. waiting: the next one first.

    tokens_per_s: of a batch of so many sequences. None: not measured yet.
    None where that is not known: nothing was measured yet, or the length of a run before it is not
    predicted.
    """
    found: list[float | None] = [None] * len(waiting)
    at_work = [_as_shares(work) for work in running]
    if tokens_per_s is None:
        return found
    # Tokens that each sequence draws from now on. A run is over when that reaches its own share.
    drawn, passed_s = 0.0, 0.0
    sequences = sum(outputs for _, outputs in at_work)
    ends = [(share, outputs) for share, outputs in at_work if share is not None]
    if len(ends) < len(at_work):
        return found
    heapq.heapify(ends)
    for place, work in enumerate(waiting):
        if ends:
            end, outputs = heapq.heappop(ends)
            passed_s += (end - drawn) * sequences / tokens_per_s(sequences)
            drawn, sequences = end, sequences - outputs
        found[place] = passed_s
        share, outputs = _as_shares(work)
        if share is None:
            break
        heapq.heappush(ends, (drawn + share, outputs))
        sequences += outputs
    return found


def _as_shares(work: RunWork) -> tuple[float | None, int]:
    """Tokens that each of the run's sequences still draws, and how many sequences there are."""
    outputs = max(1, work.outputs)
    return None if work.left_tokens is None else work.left_tokens / outputs, outputs
