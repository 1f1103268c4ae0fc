"""Counts what an engine's own process holds of its card beside its KV memory.

What the card has less after an engine's start may be another program's. NVML counts by process, but
knows a process in a container by another id, and under WSL no bytes. Then torch's own count stands
in, with an estimate of the rest.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from flashedge.models.memory.engine_memory import CONTEXT_BYTES
from flashedge.profiler.gpu import import_pynvml

MOST_OUTSIDE = 8 << 30
"""More than a process ever holds outside torch's memory and its KV. A process of another container
may have the same id as ours, and NVML then tells that one's bytes."""


def count_beside_kv(kv_bytes: int, *, is_kv_torchs: bool) -> int:
    """Bytes of the current card that this process holds beside its KV.

    kv_bytes: of the KV on this card now. is_kv_torchs: whether torch allocated it.
    """
    torchs = torch.cuda.memory_reserved() - (kv_bytes if is_kv_torchs else 0)
    card = torch.cuda.get_device_properties(torch.cuda.current_device())
    told = ask_nvml(import_pynvml(), f"GPU-{card.uuid}")
    if told is not None and torchs <= told - kv_bytes <= torchs + MOST_OUTSIDE:
        return told - kv_bytes
    return torchs + CONTEXT_BYTES


def ask_nvml(nvml: Any, card: str) -> int | None:
    """NVML's count for this process on the card with this id. None where NVML does not tell it."""
    try:
        nvml.nvmlInit()
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(card)
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
                if process.pid == os.getpid():
                    found: int | None = process.usedGpuMemory
                    return found
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError:
        pass
    return None
