"""The first start of a pair on a card: both engines at once, measured and kept."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flashedge.config import Config, load_config
from flashedge.engine import memory_plan, platform
from flashedge.engine.layout import find_layout
from flashedge.engine.memory_plan import find_measured, resolve_memory
from flashedge.engine.vllm import pair as pair_module
from flashedge.engine.vllm.engine_options import EngineOptions
from flashedge.engine.vllm.pair import VllmPair
from flashedge.errors import EngineError, GenerationFailed
from flashedge.models.registry import find_pair
from flashedge.models.specs import Pair
from tests.support.fake_nvml import FakeNvml, fake_card, fake_cards
from tests.unit.engine.test_memory_plan import PARTS

MIB, GIB = 1 << 20, 1 << 30


@dataclass
class Card:
    """A card whose free memory shrinks as engines start."""

    free: int = 23 * GIB

    def read(self, *_: object) -> Any:
        memory = SimpleNamespace(total=24 * GIB, free=self.free)
        return memory_plan.read_place(load_config({}, {}), FakeNvml(MemoryInfo=memory))


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
        self.card.free -= self.held

    async def stop(self) -> None:
        self.log.append(f"stop {self.options.name}")
        self.card.free += self.held
        self.held = 0

    async def measure_memory(self) -> dict[str, int]:
        self.log.append(f"measure {self.options.name}")
        return {**PARTS, "resident": self.overhead}


class MeasuredPair(VllmPair):
    def __init__(self, pair: Pair, config: Config, card: Card, overheads: tuple[int, int]) -> None:
        self._pair, self._built, self._is_planned = pair, False, True
        self._config, self._card, self._overheads = config, card, overheads
        self._layout = find_layout(config, fake_card("4090"))
        self.log: list[str] = []

    def _build(self) -> None:
        kv_bytes = (self._config.kv_bytes.generator or 0, self._config.kv_bytes.verifier or 0)
        for role, size in zip(("generator", "verifier"), kv_bytes, strict=True):
            spec = getattr(self._pair, role)
            options = self._build_options(role, spec, Path("/none"), size, None)
            self._set_engine(role, options)

    def _set_engine(self, role: str, options: EngineOptions) -> None:
        overhead = self._overheads[role == "verifier"]
        setattr(self, role, Engine(self._card, options, overhead, self.log))

    def _set_verifier(self, options: EngineOptions) -> None:
        self._set_engine("verifier", options)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    found = Card()
    monkeypatch.setattr(platform, "find_vllm", lambda: ("vllm", "0.32.0"))
    monkeypatch.setattr(memory_plan, "compute_profile_fingerprint", lambda *_: {"device": "4090"})
    monkeypatch.setattr(pair_module, "read_engine_card", found.read)
    return found


def start(tmp_path: Path, card: Card, overheads: tuple[int, int]) -> MeasuredPair:
    given = load_config({}, {"FLASHEDGE_HOME": str(tmp_path)})
    pair = find_pair("math-1.5b+skywork-1.5b", given)
    memory = SimpleNamespace(total=24 * GIB, free=card.free)
    config = resolve_memory(pair, given, FakeNvml(MemoryInfo=memory))
    return MeasuredPair(pair, config, card, overheads)


async def test_the_first_start_measures_and_the_second_does_not(tmp_path: Path, card: Card) -> None:
    pair = start(tmp_path, card, (4 * GIB, 3 * GIB + 700 * MIB))
    await pair.start()
    assert pair.log == [
        "start generator",
        "start verifier",
        "measure generator",
        "measure verifier",
    ]
    found = find_measured(pair._pair, pair._config, 128)
    assert found is not None
    assert [engine.total for engine in found] == [4 * GIB, 3 * GIB + 700 * MIB]
    assert not any(engine.is_estimate for engine in found)
    card.free = 23 * GIB
    again = start(tmp_path, card, (4 * GIB, 4 * GIB))
    await again.start()
    assert again.log == ["start generator", "start verifier"]
    kv = (again._config.kv_bytes.generator or 0) + (again._config.kv_bytes.verifier or 0)
    room = 23 * GIB - 256 * MIB - 7 * GIB - 700 * MIB
    assert room - 128 * MIB <= kv <= room, "the second start plans with what was measured"


async def test_what_another_program_takes_meanwhile_is_not_the_engines(
    tmp_path: Path, card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = start(tmp_path, card, (4 * GIB, 3 * GIB + 700 * MIB))
    start_engine = Engine.start

    async def start_beside_another(engine: Engine, **options: Any) -> None:
        await start_engine(engine, **options)
        card.free -= 2 * GIB

    monkeypatch.setattr(Engine, "start", start_beside_another)
    await pair.start()
    found = find_measured(pair._pair, pair._config, 128)
    assert found is not None
    assert [engine.total for engine in found] == [4 * GIB, 3 * GIB + 700 * MIB]


async def test_engines_a_little_larger_than_estimated_use_the_reserve(
    tmp_path: Path, card: Card
) -> None:
    pair = start(tmp_path, card, (0, 0))
    kv = (pair._config.kv_bytes.generator or 0) + (pair._config.kv_bytes.verifier or 0)
    pair._overheads = (card.free - kv - 4 * GIB, 4 * GIB)  # nothing of the card is left
    await pair.start()
    assert card.free == 0
    assert pair.log[:2] == ["start generator", "start verifier"]
    assert len(pair.log) == 4
    found = find_measured(pair._pair, pair._config, 128)
    assert found is not None
    assert tuple(engine.total for engine in found) == pair._overheads


async def test_a_generator_much_larger_than_estimated_leaves_less_for_the_verifier(
    tmp_path: Path, card: Card, caplog: pytest.LogCaptureFixture
) -> None:
    pair = start(tmp_path, card, (9 * GIB, 3 * GIB + 600 * MIB))
    planned = pair._config.kv_bytes.verifier or 0
    await pair.start()
    assert "start one after the other: no room for the verifier" in caplog.text
    assert pair.verifier.options.kv_bytes < planned - 4 * GIB
    assert card.free >= 0, "both engines fit the card"
    assert "more memory than estimated" in caplog.text


async def test_what_a_smaller_batch_takes_is_not_kept(
    tmp_path: Path, card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = start(tmp_path, card, (4 * GIB, 3 * GIB))
    pair._build()
    monkeypatch.setattr(pair.verifier, "has_smaller_batch", True)
    monkeypatch.setattr(pair, "_build", lambda: None)
    await pair.start()
    assert find_measured(pair._pair, pair._config, 128) is None


async def test_engines_on_cards_of_their_own_start_once(tmp_path: Path, card: Card) -> None:
    pair = start(tmp_path, card, (40 * GIB, 3 * GIB))
    given = {"devices": "0,1"}
    pair._layout = find_layout(load_config(given, {}), fake_cards("4090", "4090"))
    with pytest.raises(EngineError, match="no room for the generator"):
        await pair.start()
    assert pair.log.count("start generator") == 1


async def test_a_large_generator_on_its_own_card_leaves_the_verifier_its_memory(
    tmp_path: Path, card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = start(tmp_path, card, (9 * GIB, 3 * GIB + 600 * MIB))
    given = {"devices": "0,1"}
    pair._layout = find_layout(load_config(given, {}), fake_cards("4090", "4090"))
    own = Card()
    cards = {"generator": card, "verifier": own}

    async def start_on_own_card(engine: Engine, **options: Any) -> None:
        engine.card = cards[engine.options.name]
        await start_engine(engine, **options)

    start_engine = Engine.start
    monkeypatch.setattr(Engine, "start", start_on_own_card)
    planned = pair._config.kv_bytes.verifier
    await pair.start()
    assert pair.verifier.options.kv_bytes == planned
    found = find_measured(pair._pair, pair._config, 128)
    assert found is not None
    assert [engine.total for engine in found] == [9 * GIB, 3 * GIB + 600 * MIB]


async def test_an_engine_that_cant_be_measured_serves(
    tmp_path: Path, card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(engine: Engine) -> dict[str, int]:
        raise GenerationFailed("no memory for the largest step")

    monkeypatch.setattr(Engine, "measure_memory", fail)
    pair = start(tmp_path, card, (4 * GIB, 4 * GIB))
    await pair.start()
    assert pair.log == ["start generator", "start verifier"]
    assert find_measured(pair._pair, pair._config, 128) is None
