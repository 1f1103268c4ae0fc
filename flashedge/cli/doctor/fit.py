"""`doctor --fit`: whether a pair fits a card, and what would fit it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flashedge.benchmark.devices import CARDS, find_card
from flashedge.cli.doctor.check import BAD, GOOD, WARNING, Check
from flashedge.config import Config
from flashedge.engine.memory_plan import find_measured, read_card, read_ram
from flashedge.errors import EngineError, NotFound
from flashedge.models.card_memory import CardMemory, build_idle_card
from flashedge.models.engine_memory import MARGIN, EngineMemory
from flashedge.models.fit import FindMeasured, PairNeed, find_need, suggest
from flashedge.models.kv_plan import describe_lack, find_explicit
from flashedge.models.registry import find_pair, load_pairs
from flashedge.models.specs import Pair
from flashedge.sizes import format_size, parse_size

WIDTH = 16
"""Paths of a search by default."""


def check_fit(name: str, gpu: str | None, config: Config, nvml: Any = None) -> Iterator[Check]:
    """What the pair needs, one check each, and the verdict last.

    `gpu` is the name of a card or an amount of memory such as "80GiB". None: this machine.
    `nvml` replaces NVML (see `profiler.gpu.read_cards`).

    Raises NotFound for an unknown pair or card, CheckpointError for a pair of unknown shape.
    """
    pair = find_pair(name, config)
    place = find_place(gpu, nvml)
    need = find_need(pair, config, place, _choose_measured(pair, place, config))
    yield _check_memory(place)
    yield Check(
        name="weights",
        verdict=GOOD,
        detail=f"{format_size(need.weights[0])} generator, {format_size(need.weights[1])} verifier",
    )
    yield _check_engines(need)
    yield _check_verdict(pair, need, place, config)


def find_memory(nvml: Any = None) -> CardMemory:
    """This machine's first card with its present use, or its RAM if there is no card."""
    try:
        return read_card(nvml)
    except EngineError:
        return read_ram()


def _choose_measured(pair: Pair, place: CardMemory, config: Config) -> FindMeasured:
    """What was measured here counts only for this machine."""
    if place.is_measured:
        return lambda sequences: find_measured(pair, config, sequences)
    return lambda sequences: None


def find_place(gpu: str | None, nvml: Any = None) -> CardMemory:
    """A card by name, idle unless it is in this machine, or a card of so much memory.

    None: this machine's card, or its RAM. Raises NotFound for an unknown card.
    """
    if gpu is None:
        return find_memory(nvml)
    size = parse_size(gpu)
    if size is not None and not gpu.strip().isdigit():
        return build_idle_card("a card", size)
    try:
        _, card = find_card(gpu)
    except NotFound as error:
        raise NotFound(
            f"{gpu!r} is no card that FlashEdge knows; known: {', '.join(CARDS)}",
            hint="for another card give its memory: --gpu 80GiB",
            param="gpu",
        ) from error
    place = find_memory(nvml)
    if place.name.removeprefix("NVIDIA ") == card.sheet:
        return place
    return build_idle_card(card.sheet, card.memory_bytes)


def _check_memory(place: CardMemory) -> Check:
    held, reserve = format_size(place.held_bytes), format_size(place.reserve_bytes)
    use = "in use now" if place.is_measured else "kept by the driver of an idle card"
    return Check(
        name="memory",
        verdict=GOOD,
        detail=f"{place.name}, {format_size(place.memory_bytes)}, {held} of it {use},"
        f" {reserve} left for the display and other programs",
    )


def _check_engines(need: PairNeed) -> Check:
    found = ", ".join(
        f"{format_size(engine.overhead)} {role} ({describe_parts(engine)})"
        for role, engine in zip(("generator", "verifier"), need.engines, strict=True)
    )
    basis = (
        f"estimated, {MARGIN:.0%} added, until the first start measures them"
        if need.is_estimate
        else "measured here"
    )
    return Check(
        name="engines",
        verdict=GOOD,
        detail=f"beside weights and KV {found}; {basis}; {need.sequences} sequences a step",
    )


def describe_parts(engine: EngineMemory) -> str:
    """The parts of what an engine takes beside weights and KV."""
    parts = (("context", engine.context), ("a step", engine.step), ("graphs", engine.graphs))
    return " + ".join(f"{name} {format_size(size)}" for name, size in parts if size)


def _check_verdict(pair: Pair, need: PairNeed, place: CardMemory, config: Config) -> Check:
    if not need.fits(place):
        lack = describe_lack(need, place, need.least_bytes - place.free_bytes)
        return Check(
            name="fit",
            verdict=BAD,
            detail=f"{pair.name} does not fit: {lack}",
            hint=suggest(pair, load_pairs(config).values(), place, config),
        )
    left, most = need.kv_bytes(place), pair.max_path_tokens
    longest = need.count_paths(place, most)
    detail = (
        f"{pair.name} fits: {format_size(left)} are left for KV, enough for {longest} paths of"
        f" {most:,} tokens that share nothing"
    )
    explicit = sum(size or 0 for size in find_explicit(pair, config))
    if explicit > left:
        return Check(
            name="fit",
            verdict=WARNING,
            detail=f"{detail}; but its KV sizes are set to {format_size(explicit)}",
            hint="leave generator_kv_bytes and verifier_kv_bytes unset, so that they are planned",
        )
    if longest >= WIDTH:
        return Check(name="fit", verdict=GOOD, detail=detail)
    return Check(
        name="fit",
        verdict=WARNING,
        detail=f"{detail}; wider searches of long paths must compute some KV again",
        hint="paths of a tree share most of their KV; `flashedge simulate` shows what is lost",
    )
