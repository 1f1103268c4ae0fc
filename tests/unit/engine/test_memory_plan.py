"""The memory plan on this machine: the free memory by NVML, and what was measured here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from flashedge.config import Config, load_config
from flashedge.engine import memory_plan, platform
from flashedge.engine.memory_plan import (
    build_memory,
    find_measured,
    keep_measured,
    plan_memory_here,
    read_place,
    resolve_memory,
)
from flashedge.errors import ConfigError, EngineError
from flashedge.models.memory.card_memory import CardMemory
from flashedge.models.registry import find_pair
from tests.support.fake_nvml import FakeNvml, fake_card

MIB, GIB = 1 << 20, 1 << 30
SMALL = "math-1.5b+skywork-1.5b"
PARTS = {
    "weights": 3 * GIB,
    "forward": 250 * MIB,
    "logits": 110 * MIB,
    "logprobs": 70 * MIB,
    "noise": 300 * MIB,
}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(platform, "find_vllm", lambda: ("vllm", "0.32.0"))
    return load_config({}, {"FLASHEDGE_HOME": str(tmp_path)})


def test_what_a_display_and_other_programs_hold_is_not_planned(config: Config) -> None:
    pair = find_pair(SMALL, config)
    idle, shown = fake_card("4090"), fake_card("4090", display=True)
    busy = FakeNvml(MemoryInfo=SimpleNamespace(total=24 * GIB, free=18 * GIB))
    room = {
        name: sum(plan_memory_here(pair, config, nvml).kv_bytes)
        for name, nvml in (("idle", idle), ("shown", shown), ("busy", busy))
    }
    assert room["idle"] - room["shown"] == pytest.approx(768 * MIB, abs=128 * MIB)
    assert room["shown"] > room["busy"] > 0
    card = read_place(config, busy)
    assert isinstance(card, CardMemory)
    assert card.free_bytes == 18 * GIB - 256 * MIB


def test_a_pair_that_does_not_fit_the_free_memory_is_refused(config: Config) -> None:
    busy = FakeNvml(MemoryInfo=SimpleNamespace(total=24 * GIB, free=7 * GIB))
    with pytest.raises(ConfigError, match="does not fit NVIDIA GeForce RTX 4090"):
        resolve_memory(find_pair(SMALL, config), config, busy)
    with pytest.raises(EngineError, match="Driver Not Loaded"):
        resolve_memory(find_pair(SMALL, config), config, FakeNvml(driver=False))


def test_the_configuration_is_resolved_once(config: Config) -> None:
    pair = find_pair(SMALL, config)
    found = resolve_memory(pair, config, fake_card("4090"))
    assert found.max_num_seqs == 128
    full = FakeNvml(MemoryInfo=SimpleNamespace(total=24 * GIB, free=0))
    assert resolve_memory(pair, found, full) == found
    bundled = find_pair("bundled", config)
    assert resolve_memory(bundled, config, full).kv_bytes.generator == 256 * MIB


def test_a_measurement_is_kept_for_this_device_and_batch_limit(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = {"device": "a 4090"}
    monkeypatch.setattr(memory_plan, "compute_profile_fingerprint", lambda *_: dict(device))
    pair, engine = find_pair(SMALL, config), build_memory({**PARTS, "resident": 5 * GIB})
    assert find_measured(pair, config, 128) is None
    keep_measured(pair, config, 128, (engine, engine))
    keep_measured(pair, config, 64, (engine, engine))
    assert find_measured(pair, config, 128) == (engine, engine)
    assert find_measured(pair, config, 64) == (engine, engine)
    assert find_measured(pair, config, 32) is None
    plan = plan_memory_here(pair, config, fake_card("4090"))
    assert not plan.need.is_estimate
    assert sum(engine.total for engine in plan.need.engines) == 10 * GIB
    device["device"] = "another"
    assert find_measured(pair, config, 128) is None


def test_a_damaged_measurement_counts_as_none(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_plan, "compute_profile_fingerprint", lambda *_: {})
    pair, engine = find_pair("bundled", config), build_memory({**PARTS, "resident": 5 * GIB})
    file = memory_plan._locate(pair, config)
    file.parent.mkdir(parents=True)
    for text in ("", "{}", "[]", '{"version": 1, "fingerprint": {}, "engines": {"128": [3]}}'):
        file.write_text(text)
        assert find_measured(pair, config, 128) is None
    keep_measured(pair, config, 128, (engine, engine))
    assert find_measured(pair, config, 128) == (engine, engine)


def test_what_the_parts_dont_explain_is_the_context() -> None:
    found = build_memory({**PARTS, "resident": 5 * GIB})
    assert found.total == 5 * GIB
    assert found.step == 480 * MIB
    assert found.context == 5 * GIB - 3 * GIB - 480 * MIB
    assert build_memory({**PARTS, "resident": 0}).context == 0
    assert replace(found, is_estimate=True).overhead > found.overhead
