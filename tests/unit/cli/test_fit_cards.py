"""`doctor --fit` and `models ls --fit` with several cards, and what `ps` says of them."""

from pathlib import Path
from typing import Any

import pytest

from flashedge.cli.doctor import BAD, GOOD, Check
from flashedge.cli.doctor.command import check_kv_memory
from flashedge.cli.doctor.fit import check_fit, find_place
from flashedge.cli.models import SHOP_CARDS
from flashedge.cli.ps import describe_places
from flashedge.config import Config, load_config
from flashedge.engine import layout, platform
from flashedge.errors import ConfigError, NotFound
from flashedge.models.memory.card_memory import CardMemory, build_idle_card
from flashedge.models.memory.fit import find_need
from flashedge.models.registry import find_pair, load_pairs
from flashedge.profiler.gpu import read_cards
from tests.support.cli_rig import Patch
from tests.support.fake_nvml import FakeNvml, fake_cards

LARGE = "math-7b+prm-7b"
TWO = "rtx4090,rtx4090"
NONE = FakeNvml(driver=False)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path


def configure(home: Path, generator: str | None = None, verifier: str | None = None) -> Config:
    given = {"devices": (generator, verifier)}
    return load_config(given, {"FLASHEDGE_HOME": str(home)})


def check(config: Config, gpu: str | None, nvml: FakeNvml = NONE) -> dict[str, Check]:
    return {found.name: found for found in check_fit(LARGE, gpu, config, nvml)}


def test_a_pair_that_is_too_large_for_one_card_fits_two(home: Path) -> None:
    config = configure(home)
    assert check(config, "rtx4090")["fit"].verdict == BAD
    found = check(config, TWO)
    assert found["fit"].verdict == GOOD
    assert "fits: 7.4 GiB + 8.7 GiB are left for KV" in found["fit"].detail
    assert "no memory moves between them" in found["cards"].detail


def test_the_settings_place_the_engines_on_named_cards(home: Path) -> None:
    found = check(configure(home, "0,1", "0,1"), TWO)
    assert found["fit"].verdict == GOOD
    assert "7.1 GiB generator, 6.6 GiB verifier (on each card)" in found["weights"].detail
    assert "has not run an engine on several cards" in found["cards"].detail
    place: Any = find_place("24GiB,12GiB,12GiB", configure(home, "1,2", "0"), NONE)
    assert (place.generator.count, place.generator.memory_bytes) == (2, 12 << 30)
    assert (place.verifier.count, place.verifier.memory_bytes) == (1, 24 << 30)


def test_each_engine_needs_room_on_its_own_card(home: Path) -> None:
    config = configure(home)
    need = find_need(find_pair(LARGE, config), config, find_place(TWO, config, NONE))
    for cards, fits in (("80GiB,8GiB", False), ("8GiB,80GiB", False), ("24GiB,16GiB", True)):
        place = find_place(cards, config, NONE)
        assert need.fits(place) == fits
        assert (need.find_shortfall(place) > 0) != fits
        assert need.sum_rooms(place) > 0, "there is room for KV on one of them"


def test_cards_that_dont_go_together_are_refused(home: Path) -> None:
    for generator, verifier, gpu, problem in (
        ("0,1", "1", TWO, "share some of their cards"),
        ("0", "2", TWO, "--gpu names 2 cards"),
        (None, None, "-8GiB", "no card that FlashEdge knows"),
        ("0,1,2", "0,1,2", "24GiB,24GiB,24GiB", "can't be spread over 3 cards"),
    ):
        with pytest.raises((ConfigError, NotFound), match=problem):
            check(configure(home, generator, verifier), gpu)


def test_this_machines_cards_are_those_of_the_settings(home: Path) -> None:
    nvml = fake_cards("3060", "4090")
    alone: Any = find_place(None, configure(home), nvml)
    assert (type(alone), alone.name) == (CardMemory, "NVIDIA GeForce RTX 3060")
    each: Any = find_place(None, configure(home, "1", "0"), nvml)
    assert (each.generator.name, each.is_measured) == ("NVIDIA GeForce RTX 4090", True)


def test_doctor_says_that_no_memory_moves(home: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(platform, "find_vllm", lambda: ("vllm", "0.32.0"))
    cards = read_cards(fake_cards("4090", "4090"))
    monkeypatch.setattr(layout, "read_cards", lambda *_: cards)
    found = check_kv_memory(configure(home, "0", "1"))
    assert found == "does not move: the generator has GPU 0 to itself, the verifier GPU 1"
    assert "when the engines start" in check_kv_memory(configure(home))


def test_ps_says_where_the_engines_run() -> None:
    own = {"generator": "GPU 0 + GPU 1", "verifier": "GPU 2"}
    expected = "generator on GPU 0 + GPU 1, verifier on GPU 2; each keeps its KV memory"
    engines = {name: {"cards": cards, "kv_memory": "own"} for name, cards in own.items()}
    assert describe_places(engines) == expected
    shared = {name: {"cards": "GPU 0", "kv_memory": "kept"} for name in engines}
    assert describe_places(shared) == "generator on GPU 0, verifier on GPU 0"


def test_a_description_names_the_memory_that_the_plan_asks_for(home: Path) -> None:
    config, largest = configure(home), SHOP_CARDS[-1]
    for pair in load_pairs(config).values():
        if "needs a card with" in pair.description:
            assert "needs a card with 40 GB" in pair.description
            assert not find_need(pair, config, largest).fits(largest), pair.name
            card = build_idle_card("40 GB", 40 << 30)
            assert find_need(pair, config, card).fits(card)
    narrow = find_pair(LARGE, config)
    assert "narrow searches fit 32 GB" in narrow.description
    assert find_need(narrow, config, largest).count_paths(largest, narrow.max_path_tokens) == 2
