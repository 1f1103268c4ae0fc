"""Cards that can be simulated: the makers' figures, and assumed overheads of the engines.

What an engine adds to the roofline is not known for any card. `OVERHEADS` spans what public figures
of a 4090 allow, and every simulated gain depends on it: see scripts/bench/flashtts/sensitivity.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from flashedge.errors import NotFound
from flashedge.models.memory.card_memory import KnownCard, find_known_card
from flashedge.profiler.gpu import find_sheet
from flashedge.scheduling.costs import Device
from flashedge.scheduling.kv.split import HostLink

HOST_BYTES = 32 << 30  # RAM for offloaded KV
SWITCH_S = 0.005  # to pause one engine and resume the other (assumed)
LINKS_GB_PER_S = {"rtx4090": 25.0, "rtx4080": 25.0, "rtx3090": 25.0, "rtx5090": 50.0}
"""To pinned host memory: of PCIe 4.0 x16 25 of 32 GB/s, of PCIe 5.0 x16 twice as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """What an engine step takes beyond the roofline of its model on the card."""

    step_s: float
    sequence_s: float

    def __str__(self) -> str:
        return f"{self.step_s * 1e3:g} ms a step + {self.sequence_s * 1e6:g} us a sequence"


@dataclass(frozen=True, slots=True)
class Card(KnownCard):
    link: HostLink

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


def find_card(name: str) -> tuple[str, Card]:
    """Find (name, card), ignoring case, spaces and hyphens. Raises NotFound."""
    try:
        known, card = find_known_card(name)
        rate = LINKS_GB_PER_S[known] * 1e9
    except (KeyError, NotFound) as error:
        known = ", ".join(LINKS_GB_PER_S)
        raise NotFound(
            f"no card {name!r} can be simulated", hint=f"known: {known}", param="gpu"
        ) from error
    link = HostLink(bytes_per_s=rate, capacity_bytes=HOST_BYTES, switch_s=SWITCH_S)
    return known, Card(card.sheet, card.memory_bytes, link)


OVERHEADS: Mapping[str, Overheads] = {
    "low": Overheads(step_s=0.001, sequence_s=0.0),
    "typical": Overheads(step_s=0.003, sequence_s=80e-6),
    "high": Overheads(step_s=0.009, sequence_s=240e-6),
}
"""Public decode throughput of vLLM on a 4090 leaves some 70 us a sequence at 1.5B and 140 us at 7B
besides 3 ms a step. A fit to public seconds of whole searches, which confounds overheads with path
lengths, gave about the highest. Both: python -m scripts.bench.flashtts.calibration [--decode].
Other cards are assumed to have the same overheads."""
