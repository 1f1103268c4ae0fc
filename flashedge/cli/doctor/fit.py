"""`doctor --fit`: whether a pair fits a card, and what would fit it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flashedge.benchmark.devices import CARDS, find_card
from flashedge.benchmark.fit import (
    CardMemory,
    PairNeed,
    choose_quantized,
    estimate_need,
    list_fitting,
)
from flashedge.cli.doctor.check import BAD, GOOD, WARNING, Check
from flashedge.config import Config
from flashedge.errors import NotFound
from flashedge.models.registry import find_pair, load_pairs
from flashedge.models.specs import ENGINE_OVERHEAD_BYTES, Pair
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
    place = find_memory(nvml) if gpu is None else _find_place(gpu, nvml)
    need = estimate_need(pair, config)
    yield _check_memory(place)
    yield Check(
        name="weights",
        verdict=GOOD,
        detail=f"{format_size(need.weights[0])} generator, {format_size(need.weights[1])} verifier",
    )
    yield Check(
        name="engines",
        verdict=GOOD,
        detail=f"2 x {format_size(ENGINE_OVERHEAD_BYTES)} beside weights and KV",
    )
    yield _check_verdict(pair, need, place, config)


def find_memory(nvml: Any = None) -> CardMemory:
    """This machine's first card with its present use, or its RAM if there is no card."""
    import psutil

    from flashedge.profiler.errors import ProfileError
    from flashedge.profiler.gpu import read_cards

    try:
        card = read_cards(nvml)[0]
    except ProfileError:
        memory = psutil.virtual_memory()
        held = memory.total - memory.available
        return CardMemory(
            name="this machine's RAM",
            memory_bytes=memory.total,
            reserved_bytes=held,
            is_measured=True,
        )
    return CardMemory(
        name=card.name,
        memory_bytes=card.memory_bytes,
        reserved_bytes=card.memory_bytes - card.free_bytes,
        is_measured=True,
    )


def _find_place(gpu: str, nvml: Any) -> CardMemory:
    """A card by name, idle unless it is in this machine, or a card of so much memory."""
    size = parse_size(gpu)
    if size is not None and not gpu.strip().isdigit():
        return CardMemory(name="a card", memory_bytes=size)
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
    return CardMemory(name=card.sheet, memory_bytes=card.memory_bytes)


def _check_memory(place: CardMemory) -> Check:
    held = format_size(place.reserved_bytes)
    use = "in use now" if place.is_measured else "reserved for driver and display"
    return Check(
        name="memory",
        verdict=GOOD,
        detail=f"{place.name}, {format_size(place.memory_bytes)}, {held} of it {use}",
    )


def _check_verdict(pair: Pair, need: PairNeed, place: CardMemory, config: Config) -> Check:
    if not need.fits(place):
        missing = format_size(need.least_bytes - place.free_bytes)
        least = " + ".join(map(format_size, need.path_bytes))
        lack = f"{missing} are missing, even with KV for only one path ({least})"
        return Check(
            name="fit",
            verdict=BAD,
            detail=f"{pair.name} does not fit: {lack}",
            hint=_suggest(pair, need, place, config),
        )
    left, most = need.kv_bytes(place), pair.max_path_tokens
    longest = need.count_paths(place, most)
    detail = (
        f"{pair.name} fits: {format_size(left)} are left for KV, enough for {longest} paths of"
        f" {most:,} tokens that share nothing"
    )
    planned = pair.memory.generator_kv_bytes + pair.memory.verifier_kv_bytes
    if planned > left:
        return Check(
            name="fit",
            verdict=WARNING,
            detail=f"{detail}; its memory plan in models.toml asks for {format_size(planned)}",
            hint=f"set generator_kv_bytes and verifier_kv_bytes to {left // 2 >> 20}MiB each",
        )
    if longest >= WIDTH:
        return Check(name="fit", verdict=GOOD, detail=detail)
    return Check(
        name="fit",
        verdict=WARNING,
        detail=f"{detail}; wider searches of long paths must compute some KV again",
        hint="paths of a tree share most of their KV; `flashedge simulate` shows what is lost",
    )


def _suggest(pair: Pair, need: PairNeed, place: CardMemory, config: Config) -> str:
    other = choose_quantized(pair, need, place)
    if other is not None:
        names = ", ".join(f"{role} {q.source} ({q.method})" for role, q in other.replacements)
        left = format_size(other.kv_bytes(place))
        return f"it fits quantized, with {left} for KV: put {names} into your models.toml"
    others = [p for p in load_pairs(config).values() if p.name != "bundled"]
    fitting = ", ".join(list_fitting(others, place, config))
    if fitting:
        return f"models.toml has no quantized checkpoint that helps; these pairs fit: {fitting}"
    return "no pair of models.toml fits but `bundled`; end other programs or use a larger card"
