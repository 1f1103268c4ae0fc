"""Which cards CUDA shows to a program, and in which order.

NVML lists all cards. CUDA lists those of CUDA_VISIBLE_DEVICES: numbers of the driver's order, or
ids as `nvidia-smi -L` prints them, where the beginning of a card's id is enough. CUDA stops at the
first entry that names no card, so that `0,9,1` shows one card on a machine with two. An empty value
hides all cards. Of a card that is divided by MIG, CUDA takes the first part unless an id names one.

Ref: CUDA C++ Programming Guide, "CUDA Environment Variables"; NVIDIA MIG User Guide.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flashedge.profiler.errors import ProfileError

VARIABLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleCard:
    """A card, or the part of one, that CUDA shows."""

    index: int
    """The card's number by the driver."""

    device: str
    """What CUDA_VISIBLE_DEVICES calls it."""

    def find_handle(self, nvml: Any) -> Any:
        """NVML's handle of the card, or of the part of it that CUDA takes. Raises NVMLError."""
        if self.device.startswith("MIG-"):
            return nvml.nvmlDeviceGetHandleByUUID(self.device)
        card = nvml.nvmlDeviceGetHandleByIndex(self.index)
        with contextlib.suppress(nvml.NVMLError, AttributeError):  # it can't be divided
            if nvml.nvmlDeviceGetMigMode(card)[0]:
                return nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, 0)
        return card


def find_visible(nvml: Any, value: str | None) -> tuple[VisibleCard, ...]:
    """The cards that CUDA shows where CUDA_VISIBLE_DEVICES is `value`. None: it is not set.

    `nvml` is initialized. Raises ProfileError if there is none.
    """
    count = int(nvml.nvmlDeviceGetCount())
    if not count:
        raise ProfileError("no NVIDIA card")
    if value is None:
        return tuple(VisibleCard(index=i, device=str(i)) for i in range(count))
    found = tuple(_find_entries(nvml, value, count))
    if not found:
        raise ProfileError(
            f"{VARIABLE} is {value!r}, which hides all cards ({count} in this machine)",
            hint=f"unset {VARIABLE}, or name cards as `nvidia-smi -L` lists them: {VARIABLE}=0",
        )
    return found


def _find_entries(nvml: Any, value: str, count: int) -> Iterator[VisibleCard]:
    """Yield the cards of `value`, up to the first entry that names none or one again."""
    seen: set[str] = set()
    for entry in (part.strip() for part in value.split(",")):
        index = _find_index(nvml, entry, count)
        key = entry if entry.startswith("MIG-") else str(index)
        if index is None or key in seen:
            return
        seen.add(key)
        yield VisibleCard(index=index, device=entry)


def _find_index(nvml: Any, entry: str, count: int) -> int | None:
    """The driver's number of the card that `entry` names. None if it names none, or several."""
    if entry.isdecimal():
        return int(entry) if int(entry) < count else None
    if entry.startswith("MIG-"):
        with contextlib.suppress(nvml.NVMLError):
            part = nvml.nvmlDeviceGetHandleByUUID(entry)
            return int(
                nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part))
            )
        return None
    if not entry.startswith("GPU-"):
        return None
    matching = [i for i in range(count) if _read_id(nvml, i).startswith(entry)]
    return matching[0] if len(matching) == 1 else None


def _read_id(nvml: Any, index: int) -> str:
    """The id of a card, or nothing if it does not answer."""
    with contextlib.suppress(nvml.NVMLError):
        return str(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index)))
    return ""
