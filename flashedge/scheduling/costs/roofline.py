"""Seconds of an engine step: a roofline of a model's shape on a device.

A step's time is overhead + max(FLOPs / peak, bytes / bandwidth) over the whole batch of prefill
and decode tokens; part of the overhead may grow with the batch.

Ref: arXiv 2509.00195 §4.3. Eq. 1 uses the same two bounds, one each for prefill and decode; here
one batch may hold both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from flashedge.models.shape import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What of a device decides a step's cost."""

    name: str
    flops: float
    """Peak of dense multiply-add, in FLOP/s."""
    bandwidth: float
    """Of the memory, in bytes/s."""
    memory_bytes: int
    overhead_s: float = 0.002
    """Launch and scheduling time of one engine step."""
    sequence_s: float = 0.0
    """Overhead that each sequence of the batch adds."""


RTX_4090 = Device(
    name="RTX 4090 (bf16 dense)", flops=165e12, bandwidth=1008e9, memory_bytes=24 * 2**30
)


class StepShare(Protocol):
    """A sequence's share of a step: `new` tokens, computed behind `context` tokens of KV."""

    @property
    def context(self) -> int: ...

    @property
    def new(self) -> int: ...


class PlainShare(NamedTuple):
    """A share that names no sequence."""

    context: int
    new: int


def count_flops(shape: ModelShape, context: float, new: float) -> float:
    """2 per weight and token, and 4 per head dimension, layer and attended token."""
    return _sum_flops(shape, new, new * (context + (new + 1) / 2))


def _sum_flops(shape: ModelShape, new: float, attended: float) -> float:
    return 2 * shape.params * new + 4 * shape.layers * shape.heads * shape.head_dim * attended


def estimate_step_s(device: Device, shape: ModelShape, batch: Iterable[StepShare]) -> float:
    """Seconds of one engine step. Ref: arXiv 2509.00195 §4.3."""
    attended = new = tokens = count = 0.0
    for share in batch:
        attended += share.new * (share.context + (share.new + 1) / 2)
        new += share.new
        tokens += share.context + share.new
        count += 1
    flops = _sum_flops(shape, new, attended)
    overhead_s = device.overhead_s + device.sequence_s * count
    moved = shape.weights_bytes + shape.kv_bytes_per_token * tokens  # weights once, KV
    return overhead_s + max(flops / device.flops, moved / device.bandwidth)


def make_even_step(
    device: Device, shape: ModelShape, context: float, new: float
) -> Callable[[int], float]:
    """`estimate_step_s` of equal shares, as a function of their number."""
    flops_s = count_flops(shape, context, new) / device.flops
    kv_s = shape.kv_bytes_per_token * (context + new) / device.bandwidth
    weights_s, overhead_s = shape.weights_bytes / device.bandwidth, device.overhead_s
    sequence_s = device.sequence_s
    return lambda count: (
        overhead_s + count * sequence_s + max(count * flops_s, weights_s + count * kv_s)
    )
