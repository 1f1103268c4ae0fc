"""What an engine's work costs: measured where the profiler has been, a roofline otherwise."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import isfinite
from typing import Protocol

from flashedge.errors import ConfigError
from flashedge.models.shape import ModelShape
from flashedge.scheduling.costs.roofline import Device, even_step

BatchTime = Callable[[int], float]  # batch size -> seconds; never falls as the batch grows


class CostCurve(Protocol):
    """One model on one device. Times rise with every argument, or stay.

    The batch comes last, since a search asks for many batches of the same paths.
    """

    def decode_at(self, context: float) -> BatchTime:
        """Seconds of one engine step: a new token for each path, behind `context` tokens of KV."""
        ...

    def prefill_at(self, context: float, new: float) -> BatchTime:
        """Seconds to compute `new` tokens of each path behind `context` tokens of KV."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineCurve:
    """By the data sheet. Ref: arXiv 2509.00195 §4.3."""

    device: Device
    shape: ModelShape

    def decode_at(self, context: float) -> BatchTime:
        return even_step(self.device, self.shape, context, 1)

    def prefill_at(self, context: float, new: float) -> BatchTime:
        return even_step(self.device, self.shape, context, new)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCurve:
    """By interpolation between measured points; before the first as at the first, beyond the last
    in proportion (an upper bound). Make it with `measured`, which checks and smooths.

    decode: (len(batches), len(contexts)) seconds; prefill: (len(tokens),) seconds, told by the
    tokens computed alone: what they attend to is no axis of the measurement.
    """

    batches: tuple[float, ...]
    contexts: tuple[float, ...]
    decode: tuple[tuple[float, ...], ...]
    tokens: tuple[float, ...]
    prefill: tuple[float, ...]

    def decode_at(self, context: float) -> BatchTime:
        seconds = [_at(self.contexts, row, context) for row in self.decode]
        return lambda batch: _at(self.batches, seconds, batch)

    def prefill_at(self, context: float, new: float) -> BatchTime:
        return lambda batch: _at(self.tokens, self.prefill, batch * new)


def measured(
    *,
    batches: Sequence[float],
    contexts: Sequence[float],
    decode: Sequence[Sequence[float]],
    tokens: Sequence[float],
    prefill: Sequence[float],
) -> MeasuredCurve:
    """A curve of measured points. Where more work took less time (noise), the larger time holds.

    Raises ConfigError for axes that don't rise, tables of another shape, times that are no times.
    """
    for name, axis in (("batches", batches), ("contexts", contexts), ("tokens", tokens)):
        rises = all(a < b for a, b in pairwise(axis))
        if not axis or not rises or not all(isfinite(at) and at >= 0 for at in axis):
            raise _unusable(f"{name} {list(axis)} must rise, from 0 or above")
    if [len(row) for row in decode] != [len(contexts)] * len(batches):
        raise _unusable(f"decode must be {len(batches)} rows of {len(contexts)} times")
    if len(prefill) != len(tokens):
        raise _unusable(f"prefill must be {len(tokens)} times")
    for at in (*prefill, *(at for row in decode for at in row)):
        if not isfinite(at) or at <= 0:
            raise _unusable(f"{at} s is no time")
    rising = zip(*(accumulate(row, max) for row in decode), strict=True)
    columns = [tuple(accumulate(column, max)) for column in rising]
    return MeasuredCurve(
        batches=tuple(batches),
        contexts=tuple(contexts),
        decode=tuple(zip(*columns, strict=True)),
        tokens=tuple(tokens),
        prefill=tuple(accumulate(prefill, max)),
    )


def _at(axis: Sequence[float], seconds: Sequence[float], at: float) -> float:
    """`seconds` along `axis`, at a point of it."""
    if at >= axis[-1]:
        return seconds[-1] * (at / axis[-1] if axis[-1] else 1.0)
    if at <= axis[0]:
        return seconds[0]
    i = bisect_right(axis, at) - 1
    share = (at - axis[i]) / (axis[i + 1] - axis[i])
    return seconds[i] + share * (seconds[i + 1] - seconds[i])


def _unusable(what: str) -> ConfigError:
    return ConfigError(f"the measured cost curve is unusable: {what}", hint="profile again")
