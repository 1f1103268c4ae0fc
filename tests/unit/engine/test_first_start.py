"""The memory plan on this machine: its free memory, what was measured, and a pair's first start."""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flashedge.config import Config, load_config
from flashedge.engine import memory_plan, platform
from flashedge.engine.layout import find_layout
from flashedge.engine.memory_plan import find_measured, read_devices_memory, resolve_memory
from flashedge.engine.vllm import pair as pair_module
from flashedge.engine.vllm.engine_options import EngineOptions
from flashedge.engine.vllm.pair import VllmPair
from flashedge.errors import ConfigError, EngineError, GenerationFailed
from flashedge.models.registry import find_pair
from tests.support.fake_nvml import FakeNvml, fake_card, fake_cards

MIB, GIB = 1 << 20, 1 << 30
SMALL = "math-1.5b+skywork-1.5b"
STEP = {"forward": 250 * MIB, "logits": 110 * MIB, "logprobs": 70 * MIB, "noise": 300 * MIB}
PARTS = {"weights": 3 * GIB, **STEP}


def fake_busy(free: int) -> FakeNvml:
    return FakeNvml(MemoryInfo=SimpleNamespace(total=24 * GIB, free=free))


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(platform, "find_vllm", lambda: ("vllm", "0.32.0"))
    return load_config({}, {"FLASHEDGE_HOME": str(tmp_path)})


def test_what_a_display_and_other_programs_hold_is_not_planned(config: Config) -> None:
    pair = find_pair(SMALL, config)
    cards = (fake_card("4090"), fake_card("4090", display=True), fake_busy(18 * GIB))
    plans = (memory_plan.plan_memory_here(pair, config, nvml) for nvml in cards)
    idle, shown, busy = (sum(plan.kv_bytes) for plan in plans)
    assert idle - shown == pytest.approx(768 * MIB, abs=128 * MIB)
    assert shown > busy > 0
    assert read_devices_memory(config, cards[2]).free_bytes == 18 * GIB - 256 * MIB


def test_a_pair_is_planned_once_and_refused_where_it_does_not_fit(config: Config) -> None:
    pair, bundled, full = find_pair(SMALL, config), find_pair("bundled", config), fake_busy(0)
    with pytest.raises(ConfigError, match="does not fit NVIDIA GeForce RTX 4090"):
        resolve_memory(pair, config, fake_busy(7 * GIB))
    with pytest.raises(EngineError, match="Driver Not Loaded"):
        resolve_memory(pair, config, FakeNvml(driver=False))
    found = resolve_memory(pair, config, fake_card("4090"))
    assert (found.max_num_seqs, resolve_memory(pair, found, full)) == (128, found)
    assert resolve_memory(bundled, config, full).kv_bytes.generator == 256 * MIB


def test_a_measurement_is_kept_for_this_device_and_batch_limit_and_a_damaged_one_is_none(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = {"device": "a 4090"}
    monkeypatch.setattr(memory_plan, "compute_profile_fingerprint", lambda *_: dict(device))
    pair = find_pair(SMALL, config)
    engine = memory_plan.build_engine_memory({**PARTS, "resident": 5 * GIB})
    assert find_measured(pair, config, 128) is None
    for limit in (128, 64):
        memory_plan.keep_measured(pair, config, limit, (engine, engine))
    found = [find_measured(pair, config, limit) for limit in (128, 64, 32)]
    assert found == [(engine, engine), (engine, engine), None]
    plan = memory_plan.plan_memory_here(pair, config, fake_card("4090"))
    assert not plan.need.is_estimate
    assert sum(engine.total for engine in plan.need.engines) == 10 * GIB
    device["device"] = "another"
    assert find_measured(pair, config, 128) is None
    fit = '{"version": 1, "fingerprint": {"device": "another"}, "engines": {"128": [3]}}'
    for damaged in ("", "{}", "[]", fit, fit.replace("3", '{"weights": Infinity}')):
        memory_plan._locate(pair, config).write_text(damaged)
        assert find_measured(pair, config, 128) is None
    memory_plan.keep_measured(pair, config, 128, (engine, engine))
    assert find_measured(pair, config, 128) == (engine, engine)


def test_what_the_parts_dont_explain_is_the_context() -> None:
    found = memory_plan.build_engine_memory({**PARTS, "resident": 5 * GIB})
    context = 5 * GIB - 3 * GIB - 480 * MIB
    assert (found.total, found.step, found.context) == (5 * GIB, 480 * MIB, context)
    assert memory_plan.build_engine_memory({**PARTS, "resident": 0}).context == 0
    assert replace(found, is_estimate=True).overhead > found.overhead


OVERHEADS, LARGE = (4 * GIB, 3 * GIB + 700 * MIB), (9 * GIB, 3 * GIB + 600 * MIB)
STARTS = ["start generator", "start verifier"]


@dataclass
class Card:
    """A card whose free memory shrinks as engines start, and by what others take meanwhile."""

    home: Path
    free: int = 23 * GIB
    taken_by_others: int = 0

    def read(self, *_: object) -> Any:
        return read_devices_memory(load_config({}, {}), fake_busy(self.free))


@dataclass
class Engine:
    """An engine that takes `overhead` and its KV of the card."""

    card: Card
    options: EngineOptions
    overhead: int
    log: list[str]
    held: int = 0
    has_smaller_batch: bool = False

    async def start(self, *, shrinks: bool = True) -> None:
        self.log.append(f"start {self.options.name}")
        await asyncio.sleep(0)
        if self.card.free < self.overhead + self.options.kv_bytes:
            raise EngineError(f"no room for the {self.options.name}")
        self.held = self.overhead + self.options.kv_bytes
        self.card.free -= self.held + self.card.taken_by_others

    async def stop(self) -> None:
        self.log.append(f"stop {self.options.name}")
        self.card.free += self.held
        self.held = 0

    async def measure_memory(self) -> dict[str, int]:
        self.log.append(f"measure {self.options.name}")
        return {**PARTS, "resident": self.overhead}


class MeasuredPair(VllmPair):
    def __init__(self, card: Card, overheads: tuple[int, int]) -> None:
        given = load_config({}, {"FLASHEDGE_HOME": str(card.home)})
        self._pair, self._is_built, self._is_planned = find_pair(SMALL, given), False, True
        self._config = resolve_memory(self._pair, given, fake_busy(card.free))
        self._card, self._overheads = card, overheads
        self._layout = find_layout(given, fake_card("4090"))
        self._own_cards: dict[str, Card] = {}
        self.log: list[str] = []

    def find_totals(self) -> tuple[int, ...] | None:
        """The bytes of each engine that were kept, or None."""
        found = find_measured(self._pair, self._config, 128)
        return None if found is None else tuple(engine.total for engine in found)

    def _build(self) -> None:
        for role in ("generator", "verifier"):
            spec, size = getattr(self._pair, role), getattr(self._config.kv_bytes, role)
            self._set_engine(self._build_options(role, spec, Path("/none"), size, "fixed"))

    def _set_engine(self, options: EngineOptions) -> None:
        overhead = self._overheads[options.name == "verifier"]
        card = self._own_cards.get(options.name, self._card)
        setattr(self, options.name, Engine(card, options, overhead, self.log))

    _set_verifier = _set_engine


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Card:
    found = Card(tmp_path)
    monkeypatch.setattr(platform, "find_vllm", lambda: ("vllm", "0.32.0"))
    monkeypatch.setattr(memory_plan, "compute_profile_fingerprint", lambda *_: {"device": "4090"})
    monkeypatch.setattr(pair_module, "read_verifier_card", found.read)
    return found


async def test_what_another_program_takes_meanwhile_is_not_the_engines(card: Card) -> None:
    pair = MeasuredPair(card, OVERHEADS)
    card.taken_by_others = 2 * GIB
    await pair.start()
    assert pair.find_totals() == OVERHEADS


async def test_the_first_start_measures_and_the_second_does_not(card: Card) -> None:
    pair = MeasuredPair(card, OVERHEADS)
    await pair.start()
    assert pair.log == [*STARTS, "measure generator", "measure verifier"]
    assert pair.find_totals() == OVERHEADS
    card.free = 23 * GIB
    again = MeasuredPair(card, (4 * GIB, 4 * GIB))
    await again.start()
    assert again.log == STARTS
    room = 23 * GIB - 256 * MIB - sum(OVERHEADS)
    assert room - 128 * MIB <= sum(again._config.kv_bytes) <= room, "planned with what was measured"


async def test_slightly_larger_engines_use_the_reserve(card: Card) -> None:
    pair = MeasuredPair(card, (0, 0))
    pair._overheads = (card.free - sum(pair._config.kv_bytes) - 4 * GIB, 4 * GIB)  # nothing is left
    await pair.start()
    assert (card.free, pair.log[:2], len(pair.log)) == (0, STARTS, 4)
    assert pair.find_totals() == pair._overheads


async def test_a_generator_much_larger_than_estimated_leaves_less_for_the_verifier(
    card: Card, caplog: pytest.LogCaptureFixture
) -> None:
    pair = MeasuredPair(card, LARGE)
    planned = pair._config.kv_bytes.verifier or 0
    await pair.start()
    assert "start one after the other: no room for the verifier" in caplog.text
    assert pair.verifier.options.kv_bytes < planned - 4 * GIB
    assert card.free >= 0, "both engines fit the card"
    assert "more memory than estimated" in caplog.text


async def test_a_smaller_batch_or_a_failed_measurement_is_not_kept(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = MeasuredPair(card, (4 * GIB, 3 * GIB))
    pair._build()
    monkeypatch.setattr(pair.verifier, "has_smaller_batch", True)
    monkeypatch.setattr(pair, "_build", lambda: None)
    await pair.start()
    assert pair.find_totals() is None

    async def fail(engine: Engine) -> dict[str, int]:
        raise GenerationFailed("no memory for the largest step")

    card.free = 23 * GIB
    monkeypatch.setattr(Engine, "measure_memory", fail)
    pair = MeasuredPair(card, (4 * GIB, 4 * GIB))
    await pair.start()
    assert (pair.log, pair.find_totals()) == (STARTS, None)


async def test_engines_on_cards_of_their_own_start_once_and_share_no_memory(card: Card) -> None:
    layout = find_layout(load_config({"devices": "0,1"}, {}), fake_cards("4090", "4090"))
    pair = MeasuredPair(card, (40 * GIB, 3 * GIB))
    pair._layout = layout
    with pytest.raises(EngineError, match="no room for the generator"):
        await pair.start()
    assert pair.log.count("start generator") == 1
    pair = MeasuredPair(card, LARGE)
    pair._layout, pair._own_cards = layout, {"generator": card, "verifier": Card(card.home)}
    planned = pair._config.kv_bytes.verifier
    await pair.start()
    assert (pair.verifier.options.kv_bytes, pair.find_totals()) == (planned, LARGE)
