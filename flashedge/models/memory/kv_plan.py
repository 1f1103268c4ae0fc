"""The KV memory of a pair before a run moves any of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flashedge.config import Config
from flashedge.errors import ConfigError
from flashedge.models.memory.card_memory import Place, SeparateCards
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
    generator, verifier = find_explicit(pair, config)
    if generator is not None and verifier is not None:
        sizes = generator, verifier
        return MemoryPlan(kv_bytes=sizes, need=need, card=card, is_explicit=True)
    if isinstance(card, SeparateCards):
        rooms, least = need.find_rooms(card), need.least_kv_bytes
        missing = (0 if generator else max(0, least[0] - rooms[0])) + (
            0 if verifier else max(0, least[1] - rooms[1])
        )
    else:
        room, least = need.kv_bytes(card) - (generator or verifier or 0), need.least_kv_bytes
        missing = (0 if generator else least[0]) + (0 if verifier else least[1]) - room
    if missing > 0:
        raise ConfigError(
            f"{pair.name} does not fit {card.name}: {describe_lack(need, card, missing)}",
            hint=suggest(pair, load_pairs(config).values(), card, config),
        )
    if isinstance(card, SeparateCards):
        sizes = (
            generator or _round_down(rooms[0], least[0]),
            verifier or _round_down(rooms[1], least[1]),
        )
    elif generator is None and verifier is None:
        share = min(max(room // 2, least[1]), room - least[0])
        sizes = _round_down(room - share, least[0]), _round_down(share, least[1])
    elif generator is None:
        sizes = _round_down(room, least[0]), verifier or 0
    else:
        sizes = generator, _round_down(room, least[1])
    return MemoryPlan(kv_bytes=sizes, need=need, card=card, is_explicit=False)


def describe_lack(need: PairNeed, card: Place, missing: int) -> str:
    """Tell what is missing and of what the need consists."""
    overheads = " + ".join(format_size(engine.overhead) for engine in need.engines)
    weights = " + ".join(format_size(each) for each in need.weights)
    least = " + ".join(format_size(each) for each in need.least_kv_bytes)
    basis = "estimated" if need.is_estimate else "measured"
    cards = card.each if isinstance(card, SeparateCards) else (card,)
    usable = " + ".join(
        f"{format_size(max(0, each.free_bytes))} of {format_size(each.memory_bytes)}"
        for each in cards
    )
    return (
        f"{format_size(missing)} are missing. Weights take {weights}, the engines {overheads}"
        f" beside them ({basis}, with {need.sequences} sequences a step), KV of one path {least};"
        f" {usable} can be used"
    )


def _round_down(size: int, least: int) -> int:
    return max(size // STEP_BYTES * STEP_BYTES, least)
