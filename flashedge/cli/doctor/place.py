"""The cards that `doctor --fit` and `models ls --fit` look at: this machine's, or named ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flashedge.config import Config
from flashedge.engine.memory_plan import read_place, read_ram
from flashedge.errors import ConfigError, EngineError
from flashedge.models.memory.card_memory import (
    CardMemory,
    Place,
    SeparateCards,
    build_idle_card,
    find_known_card,
)
from flashedge.sizes import parse_size


def find_place(gpu: str | None, config: Config, nvml: Any = None) -> Place:
    """The cards that a pair is to fit. `nvml` replaces NVML (see `profiler.gpu.read_cards`).

    `gpu` names a card, or gives its memory. It is idle unless it is in this machine. Several with
    commas between them are the cards of one machine: the settings place the engines on them, or
    else each engine has one of its own. None: this machine's, placed by the settings, or its RAM.

    Raises NotFound for an unknown card, ConfigError for settings that name no card.
    """
    if gpu is None:
        try:
            return read_place(config, nvml)
        except EngineError:
            return read_ram()
    cards = tuple(_build_card(name.strip()) for name in gpu.split(","))
    if len(cards) > 1:
        return _place_engines(cards, config)
    (card,) = cards
    here = _find_here(config, nvml)
    return here if here is not None and here.name.removeprefix("NVIDIA ") == card.name else card


def _find_here(config: Config, nvml: Any) -> CardMemory | None:
    """This machine's card, if both engines run on it."""
    try:
        place = read_place(config, nvml)
    except (EngineError, ConfigError):
        return None
    return place if isinstance(place, CardMemory) and place.count == 1 else None


def _build_card(name: str) -> CardMemory:
    """An idle card by its name or its memory. Raises NotFound."""
    size = parse_size(name)
    if size is not None and not name.isdigit():
        return build_idle_card("a card", size)
    _, card = find_known_card(name)
    return build_idle_card(card.sheet, card.memory_bytes)


def _place_engines(cards: tuple[CardMemory, ...], config: Config) -> Place:
    """Put the engines on `cards`, which the settings count from 0."""
    given = config.devices
    chosen = (("0",), ("1",)) if given == (None, None) else (given[0] or ("0",), given[1] or ("0",))
    first, second = (_choose(cards, names) for names in chosen)
    if set(first) & set(second) and set(first) != set(second):
        raise ConfigError(
            "the engines share some of their cards, but not all",
            hint="give both engines the same devices, or different ones, such as 0,1",
            param="devices",
        )
    generator, verifier = (_find_smallest(cards, numbers) for numbers in (first, second))
    if set(first) == set(second):
        return generator
    return SeparateCards(generator=generator, verifier=verifier)


def _choose(cards: tuple[CardMemory, ...], names: tuple[str, ...]) -> tuple[int, ...]:
    numbers = tuple(int(name) for name in names if name.isdecimal() and int(name) < len(cards))
    if len(numbers) < len(names):
        raise ConfigError(
            f"the settings place an engine on {','.join(names)}, and --gpu names"
            f" {len(cards)} cards",
            hint="name as many cards as the settings use; with --gpu they are numbers from 0",
            param="gpu",
        )
    return numbers


def _find_smallest(cards: tuple[CardMemory, ...], numbers: tuple[int, ...]) -> CardMemory:
    smallest = min((cards[number] for number in numbers), key=lambda card: card.free_bytes)
    return replace(smallest, count=len(numbers))
