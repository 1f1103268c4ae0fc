"""What a step costs: a roofline of named model shapes on named devices.

A step's time is overhead + max(FLOPs / peak, bytes / bandwidth) over the whole batch of prefill
and decode tokens. Ref: arXiv 2509.00195 §4.3 (Eq. 1 uses the same two bounds, one each for
prefill and decode; here one batch may hold both).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """flops: dense multiply-add peak, FLOP/s; bandwidth: bytes/s; overhead_s: launch and
    scheduling time of one engine step."""

    name: str
    flops: float
    bandwidth: float
    memory_bytes: int
    overhead_s: float = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What of a transformer decides its cost. params: weights read in each step."""

    name: str
    params: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype_bytes: int = 2

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype_bytes

    @property
    def weights_bytes(self) -> int:
        return self.params * self.dtype_bytes


RTX_4090 = Device(
    name="RTX 4090 (bf16 dense)", flops=165e12, bandwidth=1008e9, memory_bytes=24 * 2**30
)

QWEN25_1_5B = ModelShape(
    name="Qwen2.5-1.5B", params=1_543_714_304, layers=28, heads=12, kv_heads=2, head_dim=128
)
QWEN25_7B = ModelShape(
    name="Qwen2.5-7B", params=7_615_616_512, layers=28, heads=28, kv_heads=4, head_dim=128
)
MISTRAL_7B = ModelShape(
    name="Mistral-7B", params=7_241_732_096, layers=32, heads=32, kv_heads=8, head_dim=128
)


@dataclass(frozen=True, slots=True)
class Work:
    """One request's share of a step: `new` tokens computed after `context` tokens of KV."""

    context: int
    new: int


def step_flops(shape: ModelShape, batch: Iterable[Work]) -> float:
    """2 per weight and token, and 4 per head dimension, layer and attended token."""
    total = 0.0
    attention = 4 * shape.layers * shape.heads * shape.head_dim
    for work in batch:
        attended = work.new * (work.context + (work.new + 1) / 2)
        total += 2 * shape.params * work.new + attention * attended
    return total


def step_bytes(shape: ModelShape, batch: Iterable[Work]) -> float:
    """The weights once, the KV of each context, and the new KV."""
    tokens = sum(work.context + work.new for work in batch)
    return shape.weights_bytes + shape.kv_bytes_per_token * tokens


def step_time_s(device: Device, shape: ModelShape, batch: Iterable[Work]) -> float:
    """Seconds of one engine step. Ref: arXiv 2509.00195 §4.3."""
    works = tuple(batch)
    compute_s = step_flops(shape, works) / device.flops
    memory_s = step_bytes(shape, works) / device.bandwidth
    return device.overhead_s + max(compute_s, memory_s)
