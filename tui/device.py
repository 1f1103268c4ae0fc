"""What the machine does: the NVIDIA cards of the engines, else processor and memory."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil
import pynvml

from flashedge.profiler import ProfileError
from flashedge.profiler.gpu import VISIBLE_DEVICES, VisibleCard, find_visible


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """One look at a card or processor. What it does not report is None."""

    name: str
    label: str = ""
    """The card's name in CUDA_VISIBLE_DEVICES. Empty for a processor."""
    utilization: float
    """In [0, 1]."""
    memory_used_bytes: int
    memory_total_bytes: int
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None


def read_devices(cards: Sequence[str] = ()) -> tuple[DeviceSample, ...]:
    """Sample the cards with these names in CUDA_VISIBLE_DEVICES, or without names the first card
    that CUDA shows. If no card can be read, sample the processor."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return (_read_processor(),)
    try:
        found = find_visible(pynvml, ",".join(cards) if cards else os.environ.get(VISIBLE_DEVICES))
        return tuple(_read_card(card) for card in (found if cards else found[:1]))
    except (pynvml.NVMLError, ProfileError):
        return (_read_processor(),)
    finally:
        pynvml.nvmlShutdown()


def _read_card(card: VisibleCard) -> DeviceSample:
    handle = pynvml.nvmlDeviceGetHandleByIndex(card.index)
    name = pynvml.nvmlDeviceGetName(handle)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return DeviceSample(
        name=name.decode() if isinstance(name, bytes) else str(name),
        label=card.device,
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
