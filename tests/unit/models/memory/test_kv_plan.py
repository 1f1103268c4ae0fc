"""The memory plan: what is divided, what is respected, and what each of several cards holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flashedge.config import Config, load_config
from flashedge.errors import ConfigError
from flashedge.models.memory.card_memory import build_idle_card
from flashedge.models.memory.engine_memory import (
    LINK_BYTES,
    EngineMemory,
    can_spread,
    check_spread,
    count_kv_bytes,
    count_weights_bytes,
    estimate_engine,
)
from flashedge.models.memory.fit import KV_GRANULARITY_BYTES, EnginePairMemory, plan_memory
from flashedge.models.registry import find_pair
from scripts.lab.sim.shapes import QWEN25_7B

MIB = 1 << 20
CARD = build_idle_card("a card", 24_564 * MIB)
SHAPE = replace(QWEN25_7B, hidden_size=3584, intermediate_size=18_944, vocab_size=152_064)
SMALL, LARGE = "math-1.5b+skywork-1.5b", "math-7b+prm-7b"


def configure(home: Path, **settings: object) -> Config:
    return load_config(settings, {"FLASHEDGE_HOME": str(home / "home")})


@pytest.mark.parametrize("mib", [9_000, 10_000, 16_376, 24_564, 32_607, 81_920])
def test_everything_planned_fits_the_free_memory(config: Config, mib: int) -> None:
    card = build_idle_card("a card", mib * MIB)
    plan = plan_memory(find_pair(SMALL, config), config, card)
    taken = sum(plan.kv_bytes) + sum(engine.total for engine in plan.need.engines)
    assert card.free_bytes - 2 * KV_GRANULARITY_BYTES <= taken <= card.free_bytes
    least = zip(plan.kv_bytes, plan.need.least_kv_bytes, strict=True)
    assert all(size >= one for size, one in least)


def test_an_engine_never_gets_less_than_one_path(config: Config) -> None:
    pair = find_pair("qwen-7b+skywork-1.5b", config)
    need = plan_memory(pair, config, CARD).need
    tight = replace(CARD, memory_bytes=need.least_bytes, held_bytes=0, reserve_bytes=0)
    assert plan_memory(pair, config, tight).kv_bytes == need.least_kv_bytes


def test_a_pair_that_cant_fit_is_refused_with_the_figures_and_the_nearest(config: Config) -> None:
    with pytest.raises(ConfigError) as e:
        plan_memory(find_pair(LARGE, config), config, CARD)
    for part in ("does not fit a card", "are missing", "14.2 GiB + 13.2 GiB", "estimated"):
        assert part in str(e.value)
    assert e.value.hint is not None
    assert "--pair math-7b+skywork-1.5b" in e.value.hint  # keeps the larger model


def test_sizes_that_are_set_are_respected(config: Config, tmp_path: Path) -> None:
    both = configure(tmp_path, kv_bytes=(300 * MIB, 200 * MIB))
    plan = plan_memory(find_pair(LARGE, both), both, CARD)
    assert plan.kv_bytes == (300 * MIB, 200 * MIB)
    one = configure(tmp_path, kv_bytes=(None, 1000 * MIB))
    pair = find_pair(SMALL, one)
    free = plan_memory(pair, config, CARD)
    assert plan_memory(pair, one, CARD).kv_bytes == (
        (free.need.kv_bytes(CARD) - 1000 * MIB) // KV_GRANULARITY_BYTES * KV_GRANULARITY_BYTES,
        1000 * MIB,
    )


def test_one_size_that_leaves_too_little_for_the_other_engine_is_named(tmp_path: Path) -> None:
    config = configure(tmp_path, kv_bytes=(18 << 30, None))
    with pytest.raises(ConfigError, match="fits a card, but not with kv_bytes as set") as e:
        plan_memory(find_pair(SMALL, config), config, CARD)
    assert e.value.hint == "lower kv_bytes, or leave it unset"


def test_what_was_measured_replaces_the_estimate(config: Config) -> None:
    parts = {"forward": 300 * MIB, "logits": 0, "logprobs": 0, "noise": 0, "graphs": 0}
    measured = EngineMemory(weights=3 << 30, context=900 * MIB, is_estimate=False, **parts)

    def find(sequences: int) -> EnginePairMemory | None:
        return (measured, measured) if sequences == 128 else None

    plan = plan_memory(find_pair(SMALL, config), config, CARD, find)
    assert not plan.need.is_estimate
    assert measured.overhead == 1200 * MIB, "a measurement gets no margin"
    room = CARD.free_bytes - 2 * (3072 + 1200) * MIB
    assert room - 2 * KV_GRANULARITY_BYTES <= sum(plan.kv_bytes) <= room


def test_the_parts_of_an_estimate() -> None:
    for sequences in (128, 256):
        found = estimate_engine(SHAPE, sequences, samples=True, on_card=True)
        assert found.logits == sequences * 152_064 * 6
        assert found.logprobs == sequences * 152_064 * 4
        assert found.sampler == found.logits + found.logprobs + found.noise
        assert found.forward == 4096 * 2 * (3 * 18_944 + 5 * 3584)
        assert found.overhead > 1.2 * 2**30
    assert estimate_engine(SHAPE, 128, samples=False, on_card=True).sampler == 0


def test_heads_are_divided_and_scarce_kv_heads_are_copied() -> None:
    whole = SHAPE.kv_bytes_per_token
    assert [count_kv_bytes(SHAPE, n) for n in (1, 2, 4)] == [whole, whole // 2, whole // 4]
    wide = replace(SHAPE, heads=32, kv_heads=4)
    assert count_kv_bytes(wide, 8) == whole // 4
    each = count_weights_bytes(wide, 8)
    head = 2 * 28 * 3584 * 128 * 2
    assert each == round(wide.weights_bytes / 8 + head / 2)
    assert count_weights_bytes(SHAPE, 2) * 2 == SHAPE.weights_bytes


def test_a_number_of_cards_that_vllm_refuses_is_named() -> None:
    assert [n for n in range(1, 17) if can_spread(SHAPE, n)] == [1, 2, 4]
    check_spread(SHAPE, 4, "generator")
    with pytest.raises(
        ConfigError, match=r"can't be spread over 3 cards: .* 28 attention"
    ) as error:
        check_spread(SHAPE, 3, "generator")
    assert error.value.hint == "give the generator one of these numbers of cards: 1, 2, 4"


def test_a_step_shrinks_with_the_width_but_not_with_the_logits() -> None:
    one, two = (
        estimate_engine(SHAPE, 128, samples=True, on_card=True, cards=cards) for cards in (1, 2)
    )
    assert two.forward == 4096 * 2 * (3 * 18_944 // 2 + 5 * 3584)
    assert (two.logits, two.noise) == (one.logits, one.noise)
    assert two.context - one.context == LINK_BYTES
