"""Chooses the cards that the engines of a pair run on, by the configuration and the driver.

Both engines share the first visible card unless the settings say otherwise. vLLM's own executors
spread an engine over several cards, with the same amount of memory on each. So two engines share
all their cards or none: if they shared some, memory of the unshared ones would stay unused.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from flashedge.config import Config
from flashedge.engine.platform import runs_on_cpu
from flashedge.errors import ConfigError, EngineError
from flashedge.profiler import ProfileError
from flashedge.profiler.gpu import VISIBLE_DEVICES, GpuCard, read_cards


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCards:
    cards: tuple[GpuCard, ...] = ()
    """Empty on a CPU."""
    is_chosen: bool = False
    """Whether a setting names them. Otherwise vLLM takes the first visible card."""

    @property
    def count(self) -> int:
        """How many devices the engine is spread over: 1 on a CPU."""
        return len(self.cards) or 1

    @property
    def visible(self) -> str | None:
        """CUDA_VISIBLE_DEVICES of the engine's process. None leaves it as the daemon's."""
        return ",".join(card.key for card in self.cards) if self.is_chosen else None

    def describe(self) -> str | None:
        """Name the cards, such as "GPU 0 + GPU 1". None on a CPU."""
        return " + ".join(f"GPU {card.key}" for card in self.cards) or None

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(card.key for card in self.cards)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    generator: EngineCards
    verifier: EngineCards

    @property
    def each(self) -> tuple[EngineCards, EngineCards]:
        return self.generator, self.verifier

    @property
    def is_shared(self) -> bool:
        """Whether both engines run on the same cards, or on the CPU."""
        return self.generator.keys == self.verifier.keys

    @property
    def is_default(self) -> bool:
        """Whether both engines run on one device that no setting names."""
        return self.is_shared and not (self.generator.is_chosen or self.verifier.is_chosen)

    @property
    def moves_memory(self) -> bool:
        """Whether one engine could use KV memory that the other gives up."""
        return self.is_shared and self.generator.count == 1


def find_layout(config: Config, nvml: Any = None) -> Layout:
    """As `find_card_layout`, but without cards where vLLM's CPU build is installed."""
    if runs_on_cpu():
        return Layout(generator=EngineCards(), verifier=EngineCards())
    return find_card_layout(config, nvml)


def find_card_layout(config: Config, nvml: Any = None) -> Layout:
    """Find the cards of both engines, whichever build of vLLM is installed.

    Raises ConfigError for a setting that names no card or one card twice, or cards that the engines
    share in part. Raises EngineError where no card answers. nvml: see `profiler.gpu.read_cards`.
    """
    found = Layout(
        generator=_find_cards("generator", config.devices.generator, nvml),
        verifier=_find_cards("verifier", config.devices.verifier, nvml),
    )
    generator, verifier = found.generator.keys, found.verifier.keys
    if generator != verifier and generator & verifier:
        common = ", ".join(sorted(generator & verifier))
        raise ConfigError(
            f"the engines share GPU {common}, but not all of their cards: the generator has"
            f" {found.generator.describe()}, the verifier {found.verifier.describe()}",
            hint="give both engines the same devices, or different ones, such as 0,1",
            param="devices",
        )
    return found


def _find_cards(role: str, devices: tuple[str, ...] | None, nvml: Any) -> EngineCards:
    try:
        if devices is None:
            return EngineCards(cards=read_cards(nvml)[:1])
        cards = tuple(_find_card(role, device, nvml) for device in devices)
    except ProfileError as error:
        raise EngineError(str(error), hint=error.hint) from error
    if len({card.key for card in cards}) < len(cards):
        raise ConfigError(
            f"devices names a card of the {role} twice: {'+'.join(devices)}", param="devices"
        )
    return EngineCards(cards=cards, is_chosen=True)


def _find_card(role: str, device: str, nvml: Any) -> GpuCard:
    """Find a card: by a number among the visible ones, by an id among all."""
    visible = read_cards(nvml)
    if device.isdecimal():
        if int(device) < len(visible):
            return visible[int(device)]
    else:
        with suppress(ProfileError):  # the id names no card
            return read_cards(nvml, {VISIBLE_DEVICES: device})[0]
    known = ", ".join(f"{i} ({card.name})" for i, card in enumerate(visible))
    raise ConfigError(
        f"devices names card {device} for the {role}; the visible cards are {known}",
        hint="`nvidia-smi -L` lists ids; numbers count the cards that CUDA_VISIBLE_DEVICES shows",
        param="devices",
    )
