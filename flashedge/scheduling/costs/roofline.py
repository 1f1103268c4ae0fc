"""What a step costs: a roofline of named model shapes on named devices.

A step's time is overhead + max(FLOPs / peak, bytes / bandwidth) over the whole batch of prefill
and decode tokens; part of the overhead may grow with the batch. Ref: arXiv 2509.00195 §4.3 (Eq. 1
uses the same two bounds, one each for prefill and decode; here one batch may hold both).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from flashedge.models.shape import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """flops: dense multiply-add peak, FLOP/s; bandwidth: bytes/s; overhead_s: launch and
    scheduling time of one engine step; sequence_s: what of it each sequence of the batch adds."""

    name: str
    flops: float
    bandwidth: float
    memory_bytes: int
    overhead_s: float = 0.002
    sequence_s: float = 0.0


RTX_4090 = Device(
    name="RTX 4090 (bf16 dense)", flops=165e12, bandwidth=1008e9, memory_bytes=24 * 2**30
)


class Share(Protocol):
    """One request's share of a step: `new` tokens computed after `context` tokens of KV."""

    @property
    def context(self) -> int: ...

    @property
    def new(self) -> int: ...


class Work(NamedTuple):
    """A share of no request in particular."""

    context: int
    new: int


def work_flops(shape: ModelShape, context: float, new: float) -> float:
    """2 per weight and token, and 4 per head dimension, layer and attended token."""
    return _flops(shape, new, new * (context + (new + 1) / 2))


def _flops(shape: ModelShape, new: float, attended: float) -> float:
    return 2 * shape.params * new + 4 * shape.layers * shape.heads * shape.head_dim * attended


def step_time_s(device: Device, shape: ModelShape, batch: Iterable[Share]) -> float:
    """Seconds of one engine step. Ref: arXiv 2509.00195 §4.3."""
    attended = new = tokens = count = 0.0
    for work in batch:
        attended += work.new * (work.context + (work.new + 1) / 2)
        new += work.new
        tokens += work.context + work.new
        count += 1
    flops = _flops(shape, new, attended)
    overhead_s = device.overhead_s + device.sequence_s * count
    moved = shape.weights_bytes + shape.kv_bytes_per_token * tokens  # weights once, KV
    return overhead_s + max(flops / device.flops, moved / device.bandwidth)


def even_step(
    device: Device, shape: ModelShape, context: float, new: float
) -> Callable[[int], float]:
    """Seconds of a step of so many equal requests: `step_time_s` as a function of their number."""
    flops_s = work_flops(shape, context, new) / device.flops
    kv_s = shape.kv_bytes_per_token * (context + new) / device.bandwidth
    weights_s, overhead_s = shape.weights_bytes / device.bandwidth, device.overhead_s
    sequence_s = device.sequence_s
    return lambda count: (
        overhead_s + count * sequence_s + max(count * flops_s, weights_s + count * kv_s)
    )
