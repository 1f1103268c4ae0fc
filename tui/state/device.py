"""What the machine does: an NVIDIA card where there is one, else processor and memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import psutil
import pynvml


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """utilization in [0, 1]; power and temperature where the device tells them."""

    name: str
    utilization: float
    memory_used_bytes: int
    memory_total_bytes: int
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None


def read_device() -> DeviceSample:
    """A sample of the first NVIDIA card, else of the processor."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return _processor()
    try:
        return _card(pynvml.nvmlDeviceGetHandleByIndex(0))
    except pynvml.NVMLError:
        return _processor()
    finally:
        pynvml.nvmlShutdown()


def _card(handle: object) -> DeviceSample:
    name = pynvml.nvmlDeviceGetName(handle)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return DeviceSample(
        name=name.decode() if isinstance(name, bytes) else str(name),
        utilization=pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
        memory_used_bytes=int(memory.used),
        memory_total_bytes=int(memory.total),
        power_w=_told(lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000),
        power_limit_w=_told(lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000),
        temperature_c=_told(
            lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
        ),
    )


def _told(read: Callable[[], float]) -> float | None:
    """A figure that not every card tells."""
    try:
        return float(read())
    except pynvml.NVMLError:
        return None


def _processor() -> DeviceSample:
    memory = psutil.virtual_memory()
    return DeviceSample(
        name=f"CPU ×{psutil.cpu_count() or 1}",
        utilization=psutil.cpu_percent() / 100,
        memory_used_bytes=int(memory.total - memory.available),
        memory_total_bytes=int(memory.total),
    )
