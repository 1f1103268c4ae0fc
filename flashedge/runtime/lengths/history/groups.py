"""The groups of runs that a request belongs to, from all runs to those most like it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import floor, log2

from flashedge.runtime.lengths.history.settings import HistorySettings
from flashedge.scheduling.lengths.request import LengthRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupKey:
    """Names a group. A part that is None does not restrict it."""

    pair: str | None = None
    kind: str | None = None
    bucket: int | None = None
    """Of the prompt's tokens (`find_bucket`)."""

    client: str | None = None

    def describe(self, settings: HistorySettings) -> str:
        """Say in words which runs the group holds."""
        if self.kind is None:
            return "all runs"
        words = f"{self.kind} on {self.pair}"
        if self.client is not None:
            words += f" from {self.client}"
        if self.bucket is not None:
            step = settings.buckets_per_octave
            low, high = (round(2 ** ((self.bucket + i) / step)) for i in range(2))
            span = f"{low}" if low == high else f"{low} to {high}"
            words += f", prompts of about {span} tokens"
        return words


ALL = GroupKey()


def find_bucket(request: LengthRequest, settings: HistorySettings) -> int | None:
    """The group of prompts about as long. None where the number of tokens is unknown."""
    tokens = request.num_prompt_tokens
    return floor(settings.buckets_per_octave * log2(tokens)) if tokens else None


def name_kind(request: LengthRequest) -> GroupKey:
    """The group of the request's pair and kind."""
    return GroupKey(pair=request.pair, kind=request.kind)


def list_groups(request: LengthRequest, settings: HistorySettings) -> list[GroupKey]:
    """List the groups of a request, the largest first."""
    bucket = find_bucket(request, settings)
    groups = [ALL, name_kind(request)]
    if bucket is not None:
        groups.append(GroupKey(pair=request.pair, kind=request.kind, bucket=bucket))
    if request.client:
        groups.append(
            GroupKey(pair=request.pair, kind=request.kind, bucket=bucket, client=request.client)
        )
    return groups


def iter_weights(
    request: LengthRequest, settings: HistorySettings
) -> Iterator[tuple[GroupKey, float]]:
    """Yield each group that a run counts in, and how much. Nearby buckets count it as well."""
    yield from ((ALL, 1.0), (name_kind(request), 1.0))
    near = _find_near(find_bucket(request, settings), settings)
    for client in (None, request.client or None):
        for bucket, weight in near:
            if bucket is not None or client is not None:
                key = GroupKey(pair=request.pair, kind=request.kind, bucket=bucket, client=client)
                yield key, weight
        if not request.client:
            return


def _find_near(bucket: int | None, settings: HistorySettings) -> Sequence[tuple[int | None, float]]:
    """Find the buckets in which a run counts. An unknown one is a bucket of its own."""
    if bucket is None:
        return [(None, 1.0)]
    weights = settings.neighbour_weights
    span = range(max(0, bucket + 1 - len(weights)), bucket + len(weights))
    return [(at, weights[abs(at - bucket)]) for at in span]
