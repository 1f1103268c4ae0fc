"""Cards that can be simulated: the makers' figures, and assumed overheads of the engines.

What an engine adds to the roofline is not known for any card. `OVERHEADS` spans what public figures
of a 4090 allow, and every simulated gain depends on it: see scripts/bench/flashtts/sensitivity.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from flashedge.errors import NotFound
from flashedge.models.memory.card_memory import KNOWN_CARDS, find_known_card
from flashedge.profiler.datasheet import find_sheet
from flashedge.scheduling.costs import Device
from flashedge.scheduling.kv.split import HostLink

HOST_BYTES = 32 << 30  # RAM for offloaded KV
SWITCH_S = 0.005  # to pause one engine and resume the other (assumed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """What an engine step takes beyond the roofline of its model on the card."""

    step_s: float
    sequence_s: float

    def __str__(self) -> str:
        return f"{self.step_s * 1e3:g} ms a step + {self.sequence_s * 1e6:g} us a sequence"


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    sheet: str
    """NVML's name of the card. `profiler.datasheet` has its peak and bandwidth by this name."""
    memory_bytes: int
    """As the driver reports it."""
    link: HostLink
    """To pinned host memory."""

    def build_device(self, overheads: Overheads) -> Device:
        sheet = find_sheet(self.sheet)
        assert sheet is not None, f"{self.sheet} has no data sheet"
        return Device(
            name=self.sheet,
            flops=sheet.tflops * 1e12,
            bandwidth=sheet.gb_per_s * 1e9,
            memory_bytes=self.memory_bytes,
            overhead_s=overheads.step_s,
            sequence_s=overheads.sequence_s,
        )


CARDS: Mapping[str, Card] = MappingProxyType(
    {
        name: Card(
            sheet=KNOWN_CARDS[name].sheet,
            memory_bytes=KNOWN_CARDS[name].memory_bytes,
            link=HostLink(bytes_per_s=gb_per_s * 1e9, capacity_bytes=HOST_BYTES, switch_s=SWITCH_S),
        )
        for name, gb_per_s in (
            ("rtx4090", 25.0),  # PCIe 4.0 x16: 25 of 32 GB/s
            ("rtx4080", 25.0),
            ("rtx3090", 25.0),
            ("rtx5090", 50.0),  # PCIe 5.0 x16
        )
    }
)

# Public decode throughput of vLLM on a 4090 leaves some 70 us a sequence at 1.5B and 140 us at 7B
# besides 3 ms a step. A fit to public seconds of whole searches, which confounds overheads with
# path lengths, gave about the highest. Both: python -m scripts.bench.flashtts.calibration
# [--decode]. Other cards are assumed to have the same overheads.
OVERHEADS: Mapping[str, Overheads] = MappingProxyType(
    {
        "low": Overheads(step_s=0.001, sequence_s=0.0),
        "typical": Overheads(step_s=0.003, sequence_s=80e-6),
        "high": Overheads(step_s=0.009, sequence_s=240e-6),
    }
)


def find_card(name: str) -> tuple[str, Card]:
    """Find (name, card), ignoring case, spaces and hyphens. Raises NotFound."""
    try:
        known, _ = find_known_card(name)
        return known, CARDS[known]
    except (KeyError, NotFound) as error:
        raise NotFound(
            f"no card {name!r} can be simulated", hint=f"known: {', '.join(CARDS)}", param="gpu"
        ) from error
