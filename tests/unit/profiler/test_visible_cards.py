"""The cards that are read are those that CUDA shows, in its order."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from flashedge.profiler.errors import ProfileError
from flashedge.profiler.gpu import read_cards
from tests.support.fake_nvml import FakeNvml, fake_cards

VARIABLE = "CUDA_VISIBLE_DEVICES"
THREE = fake_cards("4090", "3090", "3060")


def list_visible(value: str | None, nvml: FakeNvml = THREE) -> list[tuple[int, str]]:
    environ = {} if value is None else {VARIABLE: value}
    return [(card.index, card.device) for card in read_cards(nvml, environ)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [(0, "0"), (1, "1"), (2, "2")]),
        ("2,0", [(2, "2"), (0, "0")]),
        (" 1 ", [(1, "1")]),
        ("GPU-1a2b3c4d,0", [(1, "GPU-1a2b3c4d"), (0, "0")]),
        ("GPU-2", [(2, "GPU-2")]),
        ("1,9,0", [(1, "1")]),
        ("1,-1,0", [(1, "1")]),
        ("1,0,1", [(1, "1"), (0, "0")]),
    ],
)
def test_cards_come_in_the_order_of_the_variable(
    value: str | None, expected: list[tuple[int, str]]
) -> None:
    """CUDA stops at the first entry that names no card."""
    assert list_visible(value) == expected


@pytest.mark.parametrize("value", ["", "-1", "9", "GPU-", "GPU-9", "NoDevFiles"])
def test_a_variable_that_hides_all_cards_is_named(value: str) -> None:
    with pytest.raises(ProfileError, match=r"hides all cards \(3 in this machine\)") as error:
        list_visible(value)
    assert error.value.hint is not None
    assert "CUDA_VISIBLE_DEVICES=0" in error.value.hint


@pytest.mark.parametrize(
    ("value", "free"), [(None, 9 << 30), ("0", 9 << 30), ("MIG-bb", 4 << 30), ("MIG-cc", None)]
)
def test_the_memory_of_a_divided_card_is_that_of_the_part(
    value: str | None, free: int | None
) -> None:
    parts = {
        "MIG-aa": SimpleNamespace(total=10 << 30, free=9 << 30),
        "MIG-bb": SimpleNamespace(total=5 << 30, free=4 << 30),
    }
    nvml = FakeNvml(mig=parts)
    if free is None:
        with pytest.raises(ProfileError, match="hides all cards"):
            list_visible(value, nvml)
        return
    (card,) = read_cards(nvml, {} if value is None else {VARIABLE: value})
    assert card.free_bytes == free
    assert card.name.endswith("MIG")
    assert card.capability == (8, 9)
