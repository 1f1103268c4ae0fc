"""What `doctor --fit` says: does a pair fit a card, and what would."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flashedge.benchmark.devices import find_card
from flashedge.benchmark.fit import Need, Place, need_of, quantized, that_fit
from flashedge.cli.doctor.check import BAD, GOOD, WARNING, Check
from flashedge.config import Config
from flashedge.models.registry import find_pair, load_pairs
from flashedge.models.specs import ENGINE_OVERHEAD_BYTES, Pair
from flashedge.sizes import format_size

WIDTH = 16  # paths that a search has if nothing else is said


def fit(name: str, gpu: str | None, config: Config, nvml: Any = None) -> Iterator[Check]:
    """The reckoning, a line each, and the verdict last. nvml: see `profiler.gpu.read_cards`.

    Raises NotFound for an unknown pair or card, CheckpointError for a pair of unknown shape.
    """
    pair = find_pair(name, config)
    place = here(nvml) if gpu is None else _named(gpu, nvml)
    need = need_of(pair, config)
    yield _place(place)
    yield Check(
        name="weights",
        verdict=GOOD,
        detail=f"{format_size(need.weights[0])} generator, {format_size(need.weights[1])} verifier",
    )
    yield Check(
        name="engines",
        verdict=GOOD,
        detail=f"2 x {format_size(ENGINE_OVERHEAD_BYTES)} beyond weights and KV",
    )
    yield _verdict(pair, need, place, config)


def here(nvml: Any = None) -> Place:
    """This machine's first card as it is now; without one its RAM."""
    import psutil

    from flashedge.profiler.errors import ProfileError
    from flashedge.profiler.gpu import read_cards

    try:
        card = read_cards(nvml)[0]
    except ProfileError:
        memory = psutil.virtual_memory()
        held = memory.total - memory.available
        return Place(
            name="this machine's RAM", memory_bytes=memory.total, held_bytes=held, seen=True
        )
    return Place(
        name=card.name,
        memory_bytes=card.memory_bytes,
        held_bytes=card.memory_bytes - card.free_bytes,
        seen=True,
    )


def _named(gpu: str, nvml: Any) -> Place:
    """A card by name: as it is now if it is here, else an idle one."""
    _, card = find_card(gpu)
    place = here(nvml)
    if place.name.removeprefix("NVIDIA ") == card.sheet:
        return place
    return Place(name=card.sheet, memory_bytes=card.memory_bytes)


def _place(place: Place) -> Check:
    held = format_size(place.held_bytes)
    told = f"{held} of it in use now" if place.seen else f"{held} of it for driver and display"
    return Check(
        name="memory",
        verdict=GOOD,
        detail=f"{place.name}, {format_size(place.memory_bytes)}, {told}",
    )


def _verdict(pair: Pair, need: Need, place: Place, config: Config) -> Check:
    if not need.fits(place):
        missing = format_size(need.least_bytes - place.free_bytes)
        least = " + ".join(map(format_size, need.path_bytes))
        said = f"{missing} are missing, with KV for one path ({least})"
        return Check(
            name="fit",
            verdict=BAD,
            detail=f"{pair.name} does not fit: {said}",
            hint=_instead(pair, need, place, config),
        )
    left, most = need.kv_bytes(place), pair.max_path_tokens
    longest = need.paths(place, most)
    told = (
        f"{pair.name} fits: {format_size(left)} are left for KV, {longest} paths of {most:,} tokens"
        " at once with nothing shared"
    )
    planned = pair.memory.generator_kv_bytes + pair.memory.verifier_kv_bytes
    if planned > left:
        return Check(
            name="fit",
            verdict=WARNING,
            detail=f"{told}; its plan in models.toml has {format_size(planned)}",
            hint=f"set generator_kv_bytes and verifier_kv_bytes to {left // 2 >> 20}MiB each",
        )
    if longest >= WIDTH:
        return Check(name="fit", verdict=GOOD, detail=told)
    return Check(
        name="fit",
        verdict=WARNING,
        detail=f"{told}: wider searches of long paths compute some KV again",
        hint="paths of a tree share most of theirs; `flashedge simulate` says what is lost",
    )


def _instead(pair: Pair, need: Need, place: Place, config: Config) -> str:
    other = quantized(pair, need, place)
    if other is not None:
        names = ", ".join(f"{role} {q.source} ({q.method})" for role, q in other.stand_ins)
        left = format_size(other.kv_bytes(place))
        return f"quantized it would, with {left} for KV: {names}; give it in your models.toml"
    others = [p for p in load_pairs(config).values() if p.name != "bundled"]
    fitting = ", ".join(that_fit(others, place, config))
    if fitting:
        return f"models.toml knows no quantized checkpoint that helps; these fit: {fitting}"
    return "no pair of models.toml fits but `bundled`; end other programs or take a larger card"
