"""The name of the device, for the fingerprint of a profile."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import psutil

from flashedge.profiler.gpu import read_cards


def describe_device(kind: str, nvml: Any = None) -> dict[str, str]:
    """The device and driver that figures depend on. `kind` is "cpu" or "cuda".

    Raises ProfileError when `kind` is "cuda" and there is no card.
    """
    memory_gib = round(psutil.virtual_memory().total / 2**30)
    host = f"{_processor()}, {psutil.cpu_count() or 1} threads, {memory_gib} GiB"
    if kind == "cpu":
        return {"device": host, "driver": f"Linux {platform.release()}"}
    cards = read_cards(nvml)
    names = ", ".join(f"{c.name} ({c.memory_bytes / 2**30:.0f} GiB)" for c in cards)
    return {"device": f"{names}; {host}", "driver": cards[0].driver}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()
