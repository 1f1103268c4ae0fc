"""What the machine does: the first NVIDIA card that CUDA shows, else processor and memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import psutil
import pynvml

from flashedge.profiler.errors import ProfileError
from flashedge.profiler.visible_cards import VARIABLE, find_visible


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """The device at one moment. Power and temperature are None where it doesn't report them."""

    name: str
    utilization: float
    """In [0, 1]."""

    memory_used_bytes: int
    memory_total_bytes: int
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None


def read_device() -> DeviceSample:
    """A sample of the first card that CUDA shows, else of the processor."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return _read_processor()
    try:
        card = find_visible(pynvml, os.environ.get(VARIABLE))[0]
        return _read_card(pynvml.nvmlDeviceGetHandleByIndex(card.index))
    except (pynvml.NVMLError, ProfileError):
        return _read_processor()
    finally:
        pynvml.nvmlShutdown()


def _read_card(handle: object) -> DeviceSample:
    name = pynvml.nvmlDeviceGetName(handle)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return DeviceSample(
        name=name.decode() if isinstance(name, bytes) else str(name),
        utilization=pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
        memory_used_bytes=int(memory.used),
        memory_total_bytes=int(memory.total),
        power_w=_read_optional(lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000),
        power_limit_w=_read_optional(lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000),
        temperature_c=_read_optional(
            lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
        ),
    )


def _read_optional(read: Callable[[], float]) -> float | None:
    """A figure that some cards don't report."""
    try:
        return float(read())
    except pynvml.NVMLError:
        return None


def _read_processor() -> DeviceSample:
    memory = psutil.virtual_memory()
    return DeviceSample(
        name=f"CPU ×{psutil.cpu_count() or 1}",
        utilization=psutil.cpu_percent() / 100,
        memory_used_bytes=int(memory.total - memory.available),
        memory_total_bytes=int(memory.total),
    )
