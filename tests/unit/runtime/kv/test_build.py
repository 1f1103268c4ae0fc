"""The KV memory that each engine starts with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flashedge.config import load_config
from flashedge.engine.layout import EngineCards, Layout
from flashedge.engine.memory_plan import resolve_memory
from flashedge.models.registry import find_pair
from flashedge.models.specs import KvSizes, Pair
from flashedge.profiler.gpu import read_cards
from flashedge.runtime.build import build
from flashedge.runtime.kv import build as module
from flashedge.runtime.kv.build import WIDE, choose_start_split
from flashedge.runtime.kv.curves import load_curves
from flashedge.scheduling.kv.split import KvMemory
from tests.support.fake_nvml import fake_cards

MIB = 1 << 20


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLASHEDGE_HOME", str(tmp_path))


def plan_pair(each_bytes: int) -> Pair:
    memory = KvSizes(generator_kv_bytes=each_bytes, verifier_kv_bytes=each_bytes)
    return replace(find_pair("bundled", load_config()), memory=memory)


def test_a_wide_level_is_faster_than_with_half_for_each_engine() -> None:
    config, pair = load_config(), plan_pair(40 * MIB)
    sizes = choose_start_split(pair, config)
    assert sum(sizes) == 80 * MIB
    curves = load_curves(pair, config)
    memory = KvMemory(
        generator=module.build_start_cost(curves.generator, pair.generator, config),
        verifier=module.build_start_cost(curves.verifier, pair.verifier, config),
        kv_bytes=80 * MIB,
    )
    half = memory.split_evenly()
    split = replace(half, generator_bytes=sizes[0], verifier_bytes=sizes[1])
    half_fit, split_fit = (memory.refit_split(each, WIDE) for each in (half, split))
    assert split_fit.seconds < half_fit.seconds


def test_without_the_split_the_plan_or_the_configuration_stands() -> None:
    off: dict[str, object] = {"features": "kv_split=off"}
    given = {**off, "kv_bytes": (50 * MIB, None)}
    assert choose_start_split(plan_pair(40 * MIB), load_config(off)) == (40 * MIB, 40 * MIB)
    assert choose_start_split(plan_pair(40 * MIB), load_config(given)) == (50 * MIB, 40 * MIB)


def test_engines_on_two_cards_keep_what_their_cards_have(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = read_cards(fake_cards("4090", "3060"))
    engines = [EngineCards(cards=(card,), is_chosen=True) for card in cards]
    assert choose_start_split(plan_pair(40 * MIB), load_config()) != (40 * MIB, 40 * MIB)
    apart = Layout(generator=engines[0], verifier=engines[1])
    monkeypatch.setattr(module, "find_layout", lambda _: apart)
    assert choose_start_split(plan_pair(40 * MIB), load_config()) == (40 * MIB, 40 * MIB)


def test_the_sum_of_configured_sizes_is_divided() -> None:
    """As while runs go on. Only `kv_split` off keeps each size as configured."""
    config = load_config({"kv_bytes": (60 * MIB, None)})
    sizes = choose_start_split(plan_pair(20 * MIB), config)
    assert sum(sizes) == 80 * MIB
    assert sizes == choose_start_split(plan_pair(40 * MIB), load_config())


def test_memory_below_one_path_is_divided_as_planned(caplog: pytest.LogCaptureFixture) -> None:
    assert choose_start_split(plan_pair(MIB), load_config()) == (MIB, MIB)
    assert "as planned" in caplog.text


def test_the_daemon_starts_its_engines_with_this_split(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []

    def record(*args: object, is_planned: bool) -> None:
        given.append((*args, is_planned))

    monkeypatch.setattr("flashedge.engine.vllm.pair.VllmPair", record)
    config = load_config()
    build(config)
    pair = find_pair("bundled", config)
    resolved = resolve_memory(pair, config)
    assert (resolved.kv_bytes.generator, resolved.max_num_seqs) == (256 * MIB, 256)
    assert given == [(pair, resolved, choose_start_split(pair, config), False)]
