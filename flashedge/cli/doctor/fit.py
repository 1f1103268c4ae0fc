"""`doctor --fit`: whether a pair fits this machine's card or named ones, and which pair would."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from flashedge.cli.doctor import BAD, GOOD, WARNING, Check
from flashedge.config import Config
from flashedge.engine.memory_plan import find_measured, read_devices_memory, read_ram
from flashedge.errors import ConfigError, EngineError
from flashedge.models.memory.card_memory import (
    CardMemory,
    Place,
    SeparateCards,
    build_idle_card,
    count_cards,
    describe_count,
    find_known_card,
)
from flashedge.models.memory.engine_memory import MARGIN, EngineMemory
from flashedge.models.memory.fit import (
    PairNeed,
    describe_holders,
    describe_lack,
    find_explicit,
    find_need,
    suggest,
)
from flashedge.models.registry import find_pair, load_pairs
from flashedge.models.specs import Pair
from flashedge.runtime.request.validation import USUAL_PATHS
from flashedge.sizes import format_size, parse_size


def check_fit(name: str, gpu: str | None, config: Config, nvml: Any = None) -> Iterator[Check]:
    """A check for each thing that the pair needs, and the verdict last.

    gpu, nvml: see `find_place`. Raises like it, NotFound for an unknown pair, and CheckpointError
    for a pair of unknown shape.
    """
    pair = find_pair(name, config)
    place = find_place(gpu, config, nvml)

    def find_here(sequences: int) -> Any:
        """What the engines took here, which counts only for this machine."""
        return find_measured(pair, config, sequences) if place.is_measured else None

    need = find_need(pair, config, place, find_here)
    for card, _ in place.cards:
        yield _check_memory(card)
    by_role = zip(pair.models, need.weights, strict=False)
    weights = ", ".join(f"{format_size(size)} {role}" for role, size in by_role)
    yield Check("weights", GOOD, weights + (" (on each card)" if max(need.cards) > 1 else ""))
    yield from _check_layout(place)
    yield _check_engines(pair, need)
    yield _check_verdict(pair, need, place, config)


def _check_layout(place: Place) -> Iterator[Check]:
    """A check that says where the engines run, unless both run on one device."""
    counts = count_cards(place)
    if isinstance(place, SeparateCards):
        generator, verifier = describe_count(place.generator), describe_count(place.verifier)
        detail = f"the generator has its own {generator}, the verifier its own {verifier}"
        detail += "; no memory moves between them"
    elif counts[0] > 1:
        detail = f"both engines are spread over {describe_count(place)}"
    else:
        return
    if max(counts) > 1:
        detail += "; FlashEdge has not run an engine on several cards yet"
    yield Check("cards", GOOD, detail)


def _check_memory(card: CardMemory) -> Check:
    held, reserve = format_size(card.held_bytes), format_size(card.reserve_bytes)
    use = "in use now" if card.is_measured else "kept by the driver of an idle card"
    return Check(
        "memory",
        GOOD,
        f"{describe_count(card)}, {format_size(card.memory_bytes)}, {held} of it {use},"
        f" {reserve} kept free for other programs{describe_holders(card)}",
    )


def _check_engines(pair: Pair, need: PairNeed) -> Check:
    def describe(engine: EngineMemory) -> str:
        parts = (("context", engine.context), ("a step", engine.step), ("graphs", engine.graphs))
        return " + ".join(f"{name} {format_size(size)}" for name, size in parts if size)

    found = ", ".join(
        f"{format_size(engine.overhead)} {role} ({describe(engine)})"
        for role, engine in zip(pair.models, need.engines, strict=False)
    )
    basis = "measured here"
    if need.is_estimate:
        basis = f"estimated, {MARGIN:.0%} added"
    detail = f"besides weights and KV {found}; {basis}; {need.sequences} sequences a step"
    return Check("engines", GOOD, detail)


def _check_verdict(pair: Pair, need: PairNeed, place: Place, config: Config) -> Check:
    if not need.fits(place):
        lack = describe_lack(need, place, need.find_shortfall(place))
        hint = suggest(pair, load_pairs(config).values(), place, config)
        return Check("fit", BAD, f"{pair.name} does not fit: {lack}", hint=hint)
    most = pair.max_path_tokens
    num_paths = need.count_paths(place, most)
    rooms = " + ".join(format_size(room) for room, _ in need.find_rooms(place))
    detail = (
        f"{pair.name} fits: {rooms} are left for KV, enough"
        f" for {num_paths} paths of {most:,} tokens that share nothing"
    )
    explicit = find_explicit(pair, config)
    least = need.least_kv_bytes
    unset = [0 if size else least[i] for i, size in enumerate(explicit)]
    rooms_left = need.find_rooms(place, explicit)
    is_short = any(sum(unset[i] for i in on) > room for room, on in rooms_left)
    if is_short:
        detail += f"; but KV sizes are set to {format_size(sum(size or 0 for size in explicit))}"
        hint = "leave kv_bytes unset here and in models.toml, so that both sizes are planned"
        return Check("fit", WARNING, detail, hint=hint)
    if num_paths >= USUAL_PATHS:
        return Check("fit", GOOD, detail)
    detail += "; wider searches of long paths must compute some KV again"
    hint = "paths of a tree share most of their KV; `flashedge simulate` shows what is lost"
    return Check("fit", WARNING, detail, hint=hint)


def find_place(gpu: str | None, config: Config, nvml: Any = None) -> Place:
    """The cards that a pair should fit. `nvml` replaces NVML (see `profiler.gpu.read_cards`).

    gpu: the name or the memory of a card, which counts as idle unless it is this machine's. Names
    with commas between them are the cards of one machine: the settings say which engine has which,
    or else the first is the generator's and the second the verifier's. None stands for this
    machine's cards, shared out by the settings, or else for its RAM.

    Raises NotFound for an unknown card, ConfigError for settings that do not fit the cards.
    """
    if gpu is None:
        try:
            return read_devices_memory(config, nvml)
        except EngineError:
            return read_ram()
    cards = tuple(_build_card(name.strip()) for name in gpu.split(","))
    if len(cards) > 1:
        return _place_engines(cards, config)
    (card,) = cards
    with contextlib.suppress(EngineError, ConfigError):
        here = read_devices_memory(config, nvml)
        is_one_card = isinstance(here, CardMemory) and here.count == 1
        if is_one_card and here.name.removeprefix("NVIDIA ") == card.name:
            return here
    return card


def _build_card(name: str) -> CardMemory:
    """An idle card by its name or its memory. Raises NotFound."""
    size = parse_size(name)
    if size is not None and size > 0 and not name.isdigit():  # "4090" is a name
        return build_idle_card("a card", size)
    _, card = find_known_card(name)
    return build_idle_card(card.sheet, card.memory_bytes)


def _place_engines(cards: tuple[CardMemory, ...], config: Config) -> Place:
    """Put the engines on `cards`, which the settings number from 0."""
    given = config.devices
    chosen = (("0",), ("1",)) if given == (None, None) else (given[0] or ("0",), given[1] or ("0",))
    first, second = (_find_numbers(cards, names) for names in chosen)
    if set(first) & set(second) and set(first) != set(second):
        raise ConfigError(
            "the engines share some of their cards, but not all",
            hint="give both engines the same devices, or different ones, such as 0,1",
            param="devices",
        )
    generator, verifier = (
        replace(min((cards[i] for i in each), key=lambda card: card.free_bytes), count=len(each))
        for each in (first, second)
    )
    if set(first) == set(second):
        return generator
    return SeparateCards(generator=generator, verifier=verifier)


def _find_numbers(cards: tuple[CardMemory, ...], names: tuple[str, ...]) -> tuple[int, ...]:
    numbers = tuple(int(name) for name in names if name.isdecimal() and int(name) < len(cards))
    if len(numbers) < len(names):
        raise ConfigError(
            f"the settings place an engine on {','.join(names)}, and --gpu names"
            f" {len(cards)} cards",
            hint="name as many cards as the settings use; with --gpu, `devices` has numbers from 0",
            param="gpu",
        )
    return numbers
