"""What each card holds of a model that is spread over several."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashedge.errors import ConfigError
from flashedge.models.memory.engine_memory import (
    LINK_BYTES,
    can_spread,
    check_spread,
    choose_limits,
    count_kv_bytes,
    count_weights_bytes,
    estimate_engine,
)
from flashedge.models.shape import QWEN25_7B

SHAPE = replace(QWEN25_7B, hidden_size=3584, intermediate_size=18_944, vocab_size=152_064)


def test_heads_are_divided_and_scarce_kv_heads_are_copied() -> None:
    """Qwen2.5-7B has 28 attention heads and 4 KV heads."""
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
    check_spread(SHAPE, 4, "generator_devices")
    with pytest.raises(
        ConfigError, match=r"can't be spread over 3 cards: .* 28 attention"
    ) as error:
        check_spread(SHAPE, 3, "generator_devices")
    assert error.value.hint == "give generator_devices one of these numbers of cards: 1, 2, 4"


def test_a_step_shrinks_with_the_width_but_not_with_the_logits() -> None:
    limits = choose_limits(128, samples=True, on_card=True)
    one, two = (estimate_engine(SHAPE, limits, on_card=True, cards=n) for n in (1, 2))
    assert two.forward == 4096 * 2 * (3 * 18_944 // 2 + 5 * 3584)
    assert (two.logits, two.noise) == (one.logits, one.noise)
    assert two.context - one.context == LINK_BYTES
