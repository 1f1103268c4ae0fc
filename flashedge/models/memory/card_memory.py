"""The memory of the device that a pair runs on, and of cards that a user can name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from flashedge.errors import NotFound

DRIVER_SHARE = 0.018
"""The driver's share of an idle card: of 24,564 MiB a 4090 gives a program at most 23.6 GiB."""
RESERVES = {True: 1 << 30, False: 1 << 28, None: 1 << 29}
"""Bytes kept free for the display to grow, by whether one is active on the card (None if unknown).

NVML's free memory already leaves out what the desktop takes now. A browser or a second monitor
takes a few hundred MiB more later; without a display only drivers and short-lived helpers allocate.
"""
RAM_RESERVE = 1 / 8
"""Share of a machine's RAM kept free for other programs, their files, and for loading weights.
Chosen by hand: with a tenth of it a browser makes the machine swap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardMemory:
    name: str
    memory_bytes: int
    held_bytes: int
    """Memory of the driver, the display and other programs."""
    reserve_bytes: int
    """Memory that stays free. See `RESERVES`."""
    is_measured: bool
    """Whether `held_bytes` was measured here. Otherwise it is what an idle card's driver keeps."""
    held_by: tuple[str, ...] = ()
    """The programs that hold its memory, in words, the largest first. Empty if not known."""
    is_card: bool = True
    """False for RAM."""
    count: int = 1
    """How many such cards each of the engines is spread over. The other figures are those of the
    card with the least free memory."""

    @property
    def free_bytes(self) -> int:
        return self.memory_bytes - self.held_bytes - self.reserve_bytes

    @property
    def cards(self) -> tuple[tuple[CardMemory, tuple[int, ...]], ...]:
        """Each card with the engines on it: 0 for the generator, 1 for the verifier."""
        return ((self, (0, 1)),)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeparateCards:
    """The cards of two engines that share none."""

    generator: CardMemory
    verifier: CardMemory
    is_card: ClassVar[bool] = True

    @property
    def cards(self) -> tuple[tuple[CardMemory, tuple[int, ...]], ...]:
        return (self.generator, (0,)), (self.verifier, (1,))

    @property
    def name(self) -> str:
        return f"{describe_count(self.generator)} + {describe_count(self.verifier)}"

    @property
    def is_measured(self) -> bool:
        return self.generator.is_measured and self.verifier.is_measured


Place = CardMemory | SeparateCards


def count_cards(place: Place) -> tuple[int, int]:
    """Count the cards that (generator, verifier) are spread over."""
    if isinstance(place, SeparateCards):
        return place.generator.count, place.verifier.count
    return place.count, place.count


def describe_count(card: CardMemory) -> str:
    """The card's name, with the number of such cards if there are several."""
    return card.name if card.count == 1 else f"{card.count} x {card.name}"


def build_idle_card(name: str, memory_bytes: int) -> CardMemory:
    """A card that is not in this machine, with nothing else on it."""
    return CardMemory(
        name=name,
        memory_bytes=memory_bytes,
        held_bytes=round(DRIVER_SHARE * memory_bytes),
        reserve_bytes=RESERVES[None],
        is_measured=False,
    )


@dataclass(frozen=True, slots=True)
class KnownCard:
    sheet: str
    """NVML's name of the card, by which `profiler.gpu` has its peak and bandwidth."""
    memory_bytes: int
    """As the driver reports it."""


KNOWN_CARDS: Mapping[str, KnownCard] = {
    "rtx4090": KnownCard("GeForce RTX 4090", 24_564 << 20),
    "rtx4080": KnownCard("GeForce RTX 4080", 16_376 << 20),
    "rtx3090": KnownCard("GeForce RTX 3090", 24_576 << 20),
    "rtx5090": KnownCard("GeForce RTX 5090", 32_607 << 20),
}


def find_known_card(name: str) -> tuple[str, KnownCard]:
    """Find (name, card), ignoring case, spaces and hyphens. Raises NotFound."""
    plain = "".join(c for c in name.lower() if c.isalnum())
    plain = "rtx" + plain.removeprefix("nvidia").removeprefix("geforce").removeprefix("rtx")
    if plain in KNOWN_CARDS:
        return plain, KNOWN_CARDS[plain]
    raise NotFound(
        f"{name!r} is no card that FlashEdge knows; known: {', '.join(KNOWN_CARDS)}",
        hint="for another card give its memory: --gpu 80GiB",
        param="gpu",
    )
