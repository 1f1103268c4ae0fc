"""`doctor --fit`: whether a pair fits a card, and what would fit it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flashedge.cli.doctor.check import BAD, GOOD, WARNING, Check
from flashedge.cli.doctor.place import find_place
from flashedge.config import Config
from flashedge.engine.memory_plan import find_measured
from flashedge.models.memory.card_memory import (
    CardMemory,
    Place,
    SeparateCards,
    count_cards,
    describe_count,
)
from flashedge.models.memory.engine_memory import MARGIN, EngineMemory
from flashedge.models.memory.fit import (
    FindMeasured,
    PairNeed,
    describe_holders,
    describe_lack,
    find_explicit,
    find_need,
    suggest,
)
from flashedge.models.registry import find_pair, load_pairs
from flashedge.models.specs import Pair
from flashedge.sizes import format_size

WIDTH = 16
"""Paths of a search by default."""


def check_fit(name: str, gpu: str | None, config: Config, nvml: Any = None) -> Iterator[Check]:
    """What the pair needs, one check each, and the verdict last.

    `gpu` names one card or several, as for `find_place`. None: this machine's.
    `nvml` replaces NVML (see `profiler.gpu.read_cards`).

    Raises NotFound for an unknown pair or card, CheckpointError for a pair of unknown shape.
    """
    pair = find_pair(name, config)
    place = find_place(gpu, config, nvml)
    need = find_need(pair, config, place, _choose_measured(pair, place, config))
    for card, _ in place.cards:
        yield _check_memory(card)
    on_each = " (on each card)" if max(need.cards) > 1 else ""
    yield Check(
        name="weights",
        verdict=GOOD,
        detail=f"{format_size(need.weights[0])} generator, {format_size(need.weights[1])} verifier"
        + on_each,
    )
    yield from _check_layout(place)
    yield _check_engines(need)
    yield _check_verdict(pair, need, place, config)


def _choose_measured(pair: Pair, place: Place, config: Config) -> FindMeasured:
    """What was measured here counts only for this machine."""
    if place.is_measured:
        return lambda sequences: find_measured(pair, config, sequences)
    return lambda sequences: None


def _check_layout(place: Place) -> Iterator[Check]:
    """Say where the engines run, if it is not one device for both."""
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
        detail += "; an engine on several cards has not run on cards yet"
    yield Check(name="cards", verdict=GOOD, detail=detail)


def _check_memory(place: CardMemory) -> Check:
    held, reserve = format_size(place.held_bytes), format_size(place.reserve_bytes)
    use = "in use now" if place.is_measured else "kept by the driver of an idle card"
    return Check(
        name="memory",
        verdict=GOOD,
        detail=f"{describe_count(place)}, {format_size(place.memory_bytes)}, {held} of it {use},"
        f" {reserve} left for the display and other programs{describe_holders(place)}",
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


def _check_verdict(pair: Pair, need: PairNeed, place: Place, config: Config) -> Check:
    if not need.fits(place):
        lack = describe_lack(need, place, need.find_lack(place))
        return Check(
            name="fit",
            verdict=BAD,
            detail=f"{pair.name} does not fit: {lack}",
            hint=suggest(pair, load_pairs(config).values(), place, config),
        )
    left, most = need.kv_bytes(place), pair.max_path_tokens
    longest = need.count_paths(place, most)
    rooms = " + ".join(format_size(room) for room, _ in need.find_rooms(place))
    detail = (
        f"{pair.name} fits: {rooms} are left for KV, enough"
        f" for {longest} paths of {most:,} tokens that share nothing"
    )
    explicit = sum(size or 0 for size in find_explicit(pair, config))
    if explicit > left:
        return Check(
            name="fit",
            verdict=WARNING,
            detail=f"{detail}; but its KV sizes are set to {format_size(explicit)}",
            hint="leave kv_bytes unset, so that it is planned",
        )
    if longest >= WIDTH:
        return Check(name="fit", verdict=GOOD, detail=detail)
    return Check(
        name="fit",
        verdict=WARNING,
        detail=f"{detail}; wider searches of long paths must compute some KV again",
        hint="paths of a tree share most of their KV; `flashedge simulate` shows what is lost",
    )
