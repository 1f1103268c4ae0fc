"""Plans the memory of a pair by what is free on this machine and what was measured on it."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flashedge.config import Config
from flashedge.engine.layout import find_card_layout
from flashedge.engine.platform import runs_on_cpu
from flashedge.engine.profiles import compute_profile_fingerprint, locate_profile
from flashedge.errors import FlashEdgeError, StoreError
from flashedge.models.memory.card_memory import (
    RAM_RESERVE,
    RESERVES,
    CardMemory,
    Place,
    SeparateCards,
)
from flashedge.models.memory.engine_memory import EngineMemory
from flashedge.models.memory.fit import (
    EnginePairMemory,
    MemoryPlan,
    find_explicit,
    list_sequences,
    plan_memory,
    set_sizes,
)
from flashedge.models.specs import Pair
from flashedge.profiler import ProfileError
from flashedge.profiler.card_watch import describe_user, find_own_pids, read_card_users
from flashedge.profiler.gpu import VISIBLE_DEVICES, GpuCard
from flashedge.profiler.profile import load_memory, save_memory


def resolve_memory(pair: Pair, config: Config, nvml: Any = None) -> Config:
    """The configuration with the KV sizes and the batch limit that the engines start with.

    KV sizes that are set stay. A size that is not set is planned from the memory that is free now:
    raises ConfigError where the pair does not fit, EngineError where no card answers. nvml: see
    `profiler.gpu.read_cards`.
    """
    generator, verifier = find_explicit(pair, config)
    if generator is not None and verifier is not None:
        return set_sizes(config, (generator, verifier), find_max_sequences(config))
    plan = plan_memory_here(pair, config, nvml)
    return set_sizes(config, plan.kv_bytes, plan.need.sequences)


def find_max_sequences(config: Config) -> int:
    """Most sequences in one step of an engine: as set, or else the most that a plan may choose."""
    return list_sequences(config, on_card=not runs_on_cpu())[0]


def plan_memory_here(pair: Pair, config: Config, nvml: Any = None) -> MemoryPlan:
    """Plan the KV sizes and the batch limit from the free memory. Raises as `resolve_memory`."""
    place = read_ram() if runs_on_cpu() else read_devices_memory(config, nvml)
    return plan_memory(pair, config, place, lambda count: find_measured(pair, config, count))


def read_devices_memory(config: Config, nvml: Any = None) -> Place:
    """Read the size and use of the engines' cards. Raises as `find_card_layout`."""
    layout = find_card_layout(config, nvml)
    generator, verifier = (_describe_fullest(cards.cards, nvml) for cards in layout.each)
    return generator if layout.is_shared else SeparateCards(generator=generator, verifier=verifier)


def read_verifier_card(config: Config) -> CardMemory:
    """Read the fullest of the verifier's cards. Raises as `find_card_layout`."""
    return _describe_fullest(find_card_layout(config).verifier.cards)


def _describe_fullest(cards: tuple[GpuCard, ...], nvml: Any = None) -> CardMemory:
    """Describe the card that has the least room."""
    card = min(cards, key=lambda card: card.free_bytes - RESERVES[card.has_display])
    users = read_card_users(find_own_pids(os.getpid()), nvml, {VISIBLE_DEVICES: card.key})
    return CardMemory(
        name=card.name,
        memory_bytes=card.memory_bytes,
        held_bytes=card.memory_bytes - card.free_bytes,
        reserve_bytes=RESERVES[card.has_display],
        held_by=tuple(map(describe_user, users)),
        is_measured=True,
        count=len(cards),
    )


def read_ram() -> CardMemory:
    import psutil

    memory = psutil.virtual_memory()
    return CardMemory(
        name="this machine's RAM",
        memory_bytes=memory.total,
        held_bytes=memory.total - memory.available,
        reserve_bytes=int(RAM_RESERVE * memory.total),
        is_measured=True,
        is_card=False,
    )


def find_measured(pair: Pair, config: Config, sequences: int) -> EnginePairMemory | None:
    """Find what both engines took here with `sequences` in a step. None if not measured."""
    try:
        fingerprint = compute_profile_fingerprint(pair, config)
        found = load_memory(_locate(pair, config), fingerprint, sequences)
        generator, verifier = (EngineMemory(**parts, is_estimate=False) for parts in found)
    except (FlashEdgeError, TypeError, ValueError):
        return None
    return generator, verifier


def keep_measured(pair: Pair, config: Config, sequences: int, engines: EnginePairMemory) -> None:
    """Store a measurement. Raises StoreError, and as `compute_profile_fingerprint`."""
    fingerprint = compute_profile_fingerprint(pair, config)
    parts = [engine.list_parts() for engine in engines]
    try:
        save_memory(_locate(pair, config), fingerprint, sequences, parts)
    except ProfileError as error:
        raise StoreError(str(error), hint=error.hint) from error


def _locate(pair: Pair, config: Config) -> Path:
    return locate_profile(pair, config).with_suffix(".memory.json")


def build_engine_memory(parts: Mapping[str, int]) -> EngineMemory:
    """Build the EngineMemory of a measurement.

    parts: bytes by name, of `inside.step_memory`. What is resident beyond the other parts counts as
    context: the memory of CUDA, libraries and CUDA graphs, and torch's cache of freed memory.
    """
    own = {name: parts[name] for name in ("weights", "forward", "logits", "logprobs", "noise")}
    found = EngineMemory(**own, context=0, graphs=0, is_estimate=False)
    return replace(found, context=max(0, parts["resident"] - found.total))
