"""The KV memory of a pair before a run moves any of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flashedge.config import Config
from flashedge.errors import ConfigError
from flashedge.models.memory.card_memory import Place
from flashedge.models.memory.fit import FindMeasured, PairNeed, find_need, suggest
from flashedge.models.registry import load_pairs
from flashedge.models.specs import Pair
from flashedge.sizes import format_size

STEP_BYTES = 64 << 20
"""The plan is rounded down to this, so that a few MiB more or less on the card start the engines
with the same options as the last time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """How the memory of a device is divided. Tuples are (generator, verifier)."""

    kv_bytes: tuple[int, int]
    """On each card of an engine."""
    need: PairNeed
    card: Place
    is_explicit: bool
    """Whether the KV sizes were set, in config.toml or models.toml, and not planned."""


def set_sizes(config: Config, kv_bytes: tuple[int, int], sequences: int) -> Config:
    """The configuration with KV sizes of (generator, verifier) and a batch limit."""
    return replace(
        config,
        generator_kv_bytes=kv_bytes[0],
        verifier_kv_bytes=kv_bytes[1],
        max_num_seqs=sequences,
    )


def find_explicit(pair: Pair, config: Config) -> tuple[int | None, int | None]:
    """The KV sizes that were set: in config.toml, else in models.toml."""
    given = pair.memory
    listed = (None, None) if given is None else (given.generator_kv_bytes, given.verifier_kv_bytes)
    return config.generator_kv_bytes or listed[0], config.verifier_kv_bytes or listed[1]


def plan_memory(
    pair: Pair, config: Config, card: Place, find_measured: FindMeasured = lambda _: None
) -> MemoryPlan:
    """Plan the memory of a pair on `card`. Sizes that were set are respected.

    Raises ConfigError with the figures where the pair does not fit, CheckpointError where the shape
    of a model is unknown.
    """
    need = find_need(pair, config, card, find_measured)
    sizes = list(find_explicit(pair, config))
    is_explicit = None not in sizes
    least, missing = need.least_kv_bytes, 0
    for room, on_it in need.find_rooms(card):
        unset = [i for i in on_it if sizes[i] is None]
        left = room - sum(sizes[i] or 0 for i in on_it)
        missing += max(0, sum(least[i] for i in unset) - left) if unset else 0
        for i, size in zip(unset, divide(left, [least[i] for i in unset]), strict=True):
            sizes[i] = size
    if missing:
        raise ConfigError(
            f"{pair.name} does not fit {card.name}: {describe_lack(need, card, missing)}",
            hint=suggest(pair, load_pairs(config).values(), card, config),
        )
    kv_bytes = sizes[0] or 0, sizes[1] or 0
    return MemoryPlan(kv_bytes=kv_bytes, need=need, card=card, is_explicit=is_explicit)


def divide(room: int, least: Sequence[int]) -> list[int]:
    """Divide the bytes of a card among its engines: each gets an equal part, at least its least."""
    parts = []
    for i, own in enumerate(least):
        later = least[i + 1 :]
        part = room - max(room // (1 + len(later)) * len(later), sum(later))
        parts.append(max(own, part // STEP_BYTES * STEP_BYTES))
        room -= max(own, part)
    return parts


def describe_lack(need: PairNeed, card: Place, missing: int) -> str:
    """Tell what is missing and of what the need consists."""
    overheads = " + ".join(format_size(engine.overhead) for engine in need.engines)
    weights = " + ".join(format_size(each) for each in need.weights)
    least = " + ".join(format_size(each) for each in need.least_kv_bytes)
    basis = "estimated" if need.is_estimate else "measured"
    usable = " + ".join(
        f"{format_size(max(0, each.free_bytes))} of {format_size(each.memory_bytes)}"
        for each, _ in card.cards
    )
    return (
        f"{format_size(missing)} are missing. Weights take {weights}, the engines {overheads}"
        f" beside them ({basis}, with {need.sequences} sequences a step), KV of one path {least};"
        f" {usable} can be used{describe_holders(card)}"
    )


def describe_holders(card: Place) -> str:
    """A clause that names the programs that hold memory of the cards. Empty where none is known."""
    held = [by for each, _ in card.cards for by in each.held_by]
    return f"; other programs hold memory: {', '.join(held)}" if held else ""
