"""Cards that a user can name though they are not in the machine, with their memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from flashedge.errors import NotFound


@dataclass(frozen=True, slots=True)
class KnownCard:
    """A card by its data sheet."""

    sheet: str
    """NVML's name of the card. `profiler.datasheet` has its peak and bandwidth by this name."""

    memory_bytes: int
    """As the driver reports it."""


KNOWN_CARDS: Mapping[str, KnownCard] = MappingProxyType(
    {
        "rtx4090": KnownCard("GeForce RTX 4090", 24_564 << 20),
        "rtx4080": KnownCard("GeForce RTX 4080", 16_376 << 20),
        "rtx3090": KnownCard("GeForce RTX 3090", 24_576 << 20),
        "rtx5090": KnownCard("GeForce RTX 5090", 32_607 << 20),
    }
)


def find_known_card(name: str) -> tuple[str, KnownCard]:
    """Find (name, card), ignoring case, spaces and hyphens. Raises NotFound."""
    plain = "".join(c for c in name.lower() if c.isalnum())
    plain = plain.removeprefix("nvidia").removeprefix("geforce")
    plain = plain if plain.startswith("rtx") else f"rtx{plain}"
    if plain in KNOWN_CARDS:
        return plain, KNOWN_CARDS[plain]
    raise NotFound(
        f"{name!r} is no card that FlashEdge knows; known: {', '.join(KNOWN_CARDS)}",
        hint="for another card give its memory: --gpu 80GiB",
        param="gpu",
    )
