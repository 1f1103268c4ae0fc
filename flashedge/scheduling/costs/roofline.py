"""Seconds of an engine step: a roofline of a model's shape on a device.

A step's time is overhead + max(FLOPs / peak, bytes / bandwidth) over the whole batch of prefill
and decode tokens; part of the overhead may grow with the batch.

Ref: arXiv 2509.00195 §4.3. Eq. 1 uses the same two bounds, one each for prefill and decode; here
one batch may hold both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from flashedge.models.shape import ModelShape

Number = TypeVar("Number", float, NDArray[np.float64])


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


def _sum_flops(shape: ModelShape, new: float, attended: Number) -> Number:
    return 2 * shape.params * new + 4 * shape.layers * shape.heads * shape.head_dim * attended


def estimate_step_s(device: Device, shape: ModelShape, batch: Iterable[StepShare]) -> float:
    """Seconds of one engine step. Ref: arXiv 2509.00195 §4.3."""
    attended = new = tokens = count = 0.0
    for share in batch:
        attended += share.new * (share.context + (share.new + 1) / 2)
        new += share.new
        tokens += share.context + share.new
        count += 1
    return estimate_sums_s(device, shape, attended=attended, new=new, tokens=tokens, count=count)


def estimate_sums_s(
    device: Device,
    shape: ModelShape,
    *,
    attended: float,
    new: float,
    tokens: float,
    count: float,
) -> float:
    """`estimate_step_s` of a batch whose sums are known.

    attended: tokens that the new ones attend to, summed over the new ones; tokens: those of the
    batch, with the new ones; count: sequences.
    """
    flops_s, bytes_s = _sum_costs(device, shape, new, attended, tokens)
    return device.overhead_s + device.sequence_s * count + max(flops_s, bytes_s)


def estimate_decode_steps_s(
    device: Device, shape: ModelShape, computed: float, count: int, steps: int
) -> NDArray[np.float64]:
    """(steps,) seconds of consecutive steps that each add a token to the same `count` sequences.
    Equal to `estimate_step_s` of each step.

    computed: tokens of all sequences together whose KV is there before the first step.
    """
    added = count * np.arange(1, steps + 1)  # each token attends to itself as well
    tokens = np.asarray(computed + added, dtype=np.float64)
    flops_s, bytes_s = _sum_costs(device, shape, float(count), tokens, tokens)
    slower_s: NDArray[np.float64] = np.maximum(flops_s, bytes_s)
    return device.overhead_s + device.sequence_s * count + slower_s


def _sum_costs(
    device: Device, shape: ModelShape, new: float, attended: Number, tokens: Number
) -> tuple[Number, Number]:
    """Seconds for the FLOPs, and for reading the weights once and the KV of `tokens`."""
    flops = _sum_flops(shape, new, attended)
    moved = shape.weights_bytes + shape.kv_bytes_per_token * tokens
    return flops / device.flops, moved / device.bandwidth


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
