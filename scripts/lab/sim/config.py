"""What a simulated engine is made of, and the faults that tests put into it."""

from __future__ import annotations

from dataclasses import dataclass

from flashedge.models.shape import ModelShape
from flashedge.scheduling.costs import RTX_4090, Device
from flashedge.scheduling.speculation.draft_choice import UNMEASURED_BATCH


@dataclass(frozen=True, slots=True, kw_only=True)
class SimConfig:
    """One simulated engine."""

    shape: ModelShape
    kv_bytes: int
    """Its whole KV memory, the upper limit of `budget`."""
    device: Device = RTX_4090
    block_tokens: int = 16
    max_model_len: int = 4096
    max_num_seqs: int = 256
    max_batched_tokens: int = 2048
    by_priority: bool = False
    """Whether waiting requests run in the order of `priority`, not of arrival."""
    reuse: bool = True
    """Whether prefixes are cached."""
    stream_interval: int = 1
    """Tokens of a chunk. A request's last chunk may hold fewer."""
    host_bytes_per_s: float = 25e9
    """Bandwidth between the device and the memory that offloaded KV goes to (PCIe 4 x16)."""
    flat_batch: int = 0
    """See `BatchView.flat_batch`."""
    unmeasured_batch: int = UNMEASURED_BATCH
    """See `BatchView.unmeasured_batch`."""

    @property
    def block_bytes(self) -> int:
        return self.block_tokens * self.shape.kv_bytes_per_token


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What goes wrong, for tests."""

    die_after_steps: frozenset[int] = frozenset()
    """The engine dies at the end of these steps, counted from 1 over its whole life."""
    restart_s: float | None = 2.0
    """Virtual seconds until a dead engine is back. None: it is given up."""
    fail_requests: frozenset[int] = frozenset()
    """These requests fail at their first step, counted from 0 in order of arrival."""
