"""Seconds of a simulated engine step whose sequences differ, by `scheduling.costs`' roofline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from flashedge.models.shape import ModelShape
from flashedge.scheduling.costs import Device

Number = TypeVar("Number", float, NDArray[np.float64])


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
    device: Device, shape: ModelShape, *, attended: float, new: float, tokens: float, count: float
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
