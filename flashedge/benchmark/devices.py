"""Cards that can be simulated: the makers' figures, and overheads fitted to public measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from flashedge.errors import NotFound
from flashedge.profiler.datasheet import find_sheet
from flashedge.scheduling.costs.roofline import Device
from flashedge.scheduling.kv.split import HostLink

HOST_BYTES = 32 << 30  # RAM for offloaded KV
SWITCH_S = 0.005  # to pause one engine and resume the other (assumed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A card by its data sheet."""

    sheet: str
    """NVML's name of the card. `profiler.datasheet` has its peak and bandwidth by this name."""

    memory_bytes: int
    """As the driver reports it."""

    link_bytes_per_s: float
    """Bandwidth to pinned host memory, one way."""

    def build_device(self, *, overhead_s: float, sequence_s: float) -> Device:
        """Build the device, with the data sheet's peak and bandwidth and these overheads."""
        sheet = find_sheet(self.sheet)
        assert sheet is not None, f"{self.sheet} has no data sheet"
        return Device(
            name=self.sheet,
            flops=sheet.tflops * 1e12,
            bandwidth=sheet.gb_per_s * 1e9,
            memory_bytes=self.memory_bytes,
            overhead_s=overhead_s,
            sequence_s=sequence_s,
        )

    @property
    def link(self) -> HostLink:
        return HostLink(
            bytes_per_s=self.link_bytes_per_s, capacity_bytes=HOST_BYTES, switch_s=SWITCH_S
        )


def _card(sheet: str, memory_mib: int, link_gb_per_s: float = 25.0) -> Card:
    return Card(sheet=sheet, memory_bytes=memory_mib << 20, link_bytes_per_s=link_gb_per_s * 1e9)


CARDS: Mapping[str, Card] = MappingProxyType(
    {
        "rtx4090": _card("GeForce RTX 4090", 24_564),  # PCIe 4.0 x16: 25 of 32 GB/s
        "rtx4080": _card("GeForce RTX 4080", 16_376),
        "rtx3090": _card("GeForce RTX 3090", 24_576),
        "rtx5090": _card("GeForce RTX 5090", 32_607, 50.0),  # PCIe 5.0 x16
    }
)

# Fitted to two public points of a 4090 and checked on three others:
# python -m scripts.bench.flashtts.calibration. Other cards are assumed to have the same overheads.
CALIBRATED = "rtx4090"
OVERHEAD_S = 0.0095
SEQUENCE_S = 0.00024


def find_card(name: str) -> tuple[str, Card]:
    """Find (name, card), ignoring case, spaces and hyphens. Raises NotFound."""
    plain = "".join(c for c in name.lower() if c.isalnum())
    plain = plain.removeprefix("nvidia").removeprefix("geforce")
    plain = plain if plain.startswith("rtx") else f"rtx{plain}"
    if plain in CARDS:
        return plain, CARDS[plain]
    raise NotFound(
        f"no card {name!r} can be simulated", hint=f"known: {', '.join(CARDS)}", param="gpu"
    )


def build_device(card: Card) -> Device:
    """Build the device that the simulation uses."""
    return card.build_device(overhead_s=OVERHEAD_S, sequence_s=SEQUENCE_S)
