"""Seconds of an engine's work: from a profile where there is one, from a roofline otherwise.

By a roofline a step takes overhead + max(FLOPs / peak, bytes / bandwidth) over the whole batch;
part of the overhead may grow with the batch.

Ref: arXiv 2509.00195 §4.3. Eq. 1 uses one of the two bounds for prefill and the other for decode;
here the larger one counts in both.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import isfinite
from typing import Protocol

from flashedge.errors import ConfigError
from flashedge.models.shape import ModelShape

BatchTime = Callable[[int], float]  # batch size -> seconds; it never falls as the batch grows


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    name: str
    flops: float
    """Peak of dense multiply-add, in FLOP/s."""
    bandwidth: float
    """Memory bandwidth in bytes/s."""
    memory_bytes: int
    overhead_s: float = 0.002
    """Launch and scheduling time of one engine step. The default is an assumption for devices that
    were not measured."""
    sequence_s: float = 0.0
    """Overhead of each sequence in a step."""
    draft_s: float = 0.0
    """Overhead of each drafted token in a step."""


RTX_4090 = Device(
    name="RTX 4090 (bf16 dense)", flops=165e12, bandwidth=1008e9, memory_bytes=24 * 2**30
)


class CostCurve(Protocol):
    """Times never fall as an argument grows. The methods return functions of the batch, since a
    caller tries many batches of the same paths."""

    def decode_at(self, context: float) -> BatchTime:
        """Seconds of one engine step that adds a token to each path, after `context` tokens."""

    def prefill_at(self, context: float, new: float) -> BatchTime:
        """Seconds to compute `new` tokens of each path after `context` tokens of KV."""


def count_flops(shape: ModelShape, context: float, new: float) -> float:
    """FLOPs to compute `new` tokens of one path after `context` tokens of KV: 2 per weight and
    token, and 4 per attended token for each dimension of the heads of all layers."""
    attended = new * (context + (new + 1) / 2)
    return 2 * shape.params * new + 4 * shape.layers * shape.heads * shape.head_dim * attended


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineCurve:
    device: Device
    shape: ModelShape

    def decode_at(self, context: float) -> BatchTime:
        return self.prefill_at(context, 1)

    def prefill_at(self, context: float, new: float) -> BatchTime:
        device, shape = self.device, self.shape
        flops_s = count_flops(shape, context, new) / device.flops
        kv_s = shape.kv_bytes_per_token * (context + new) / device.bandwidth
        weights_s = shape.weights_bytes / device.bandwidth
        return lambda count: (
            device.overhead_s
            + count * device.sequence_s
            + max(count * flops_s, weights_s + count * kv_s)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCurve:
    """Interpolates between measured points. Before the first point a time is constant. Beyond the
    last it grows in proportion, which is too much where part of a time is overhead."""

    batches: tuple[float, ...]
    """Measured batch sizes of decode steps, rising."""
    contexts: tuple[float, ...]
    """Measured tokens of KV per path in decode steps, rising."""
    decode: tuple[tuple[float, ...], ...]
    """(len(batches), len(contexts)) seconds."""
    tokens: tuple[float, ...]
    """Measured prefill tokens of a whole batch, rising."""
    prefill: tuple[float, ...]
    """(len(tokens),) seconds. The length of the context was not varied."""

    def decode_at(self, context: float) -> BatchTime:
        seconds = [_interpolate(self.contexts, row, context) for row in self.decode]
        return lambda batch: _interpolate(self.batches, seconds, batch)

    def prefill_at(self, context: float, new: float) -> BatchTime:
        return lambda batch: _interpolate(self.tokens, self.prefill, batch * new)


def interpolate_measurements(
    *,
    batches: Sequence[float],
    contexts: Sequence[float],
    decode: Sequence[Sequence[float]],
    tokens: Sequence[float],
    prefill: Sequence[float],
) -> MeasuredCurve:
    """Make a curve of measured points, which are the fields of `MeasuredCurve`. Where more work
    took less time (noise), the longer time is used. Raises ConfigError for unusable points."""
    for name, axis in (("batches", batches), ("contexts", contexts), ("tokens", tokens)):
        rises = all(a < b for a, b in pairwise(axis))
        if not axis or not rises or not all(isfinite(at) and at >= 0 for at in axis):
            raise _make_error(f"{name} {list(axis)} must rise, from 0 or above")
    if [len(row) for row in decode] != [len(contexts)] * len(batches):
        raise _make_error(f"decode must be {len(batches)} rows of {len(contexts)} times")
    if len(prefill) != len(tokens):
        raise _make_error(f"prefill must be {len(tokens)} times")
    for at in (*prefill, *(at for row in decode for at in row)):
        if not isfinite(at) or at <= 0:
            raise _make_error(f"{at} s is not a positive time")
    rising = zip(*(accumulate(row, max) for row in decode), strict=True)
    columns = [tuple(accumulate(column, max)) for column in rising]
    return MeasuredCurve(
        batches=tuple(batches),
        contexts=tuple(contexts),
        decode=tuple(zip(*columns, strict=True)),
        tokens=tuple(tokens),
        prefill=tuple(accumulate(prefill, max)),
    )


def _interpolate(axis: Sequence[float], seconds: Sequence[float], at: float) -> float:
    if at >= axis[-1]:
        return seconds[-1] * (at / axis[-1] if axis[-1] else 1.0)
    if at <= axis[0]:
        return seconds[0]
    i = bisect_right(axis, at) - 1
    share = (at - axis[i]) / (axis[i + 1] - axis[i])
    return seconds[i] + share * (seconds[i + 1] - seconds[i])


def _make_error(what: str) -> ConfigError:
    return ConfigError(
        f"the measured cost curve is unusable: {what}", hint="run `flashedge profile`"
    )
