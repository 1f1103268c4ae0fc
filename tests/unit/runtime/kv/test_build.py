"""The KV memory that each engine starts with, and the cost curves that divide it."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from flashedge.config import Config, load_config
from flashedge.engine.layout import EngineCards, Layout
from flashedge.engine.memory_plan import resolve_memory
from flashedge.engine.profiles import compute_profile_fingerprint, locate_profile
from flashedge.errors import ConfigError
from flashedge.models.memory.fit import count_least_kv
from flashedge.models.registry import find_pair
from flashedge.models.shape import BoundedLayers, ModelShape
from flashedge.models.specs import KvSizes, Pair
from flashedge.profiler.gpu import read_cards
from flashedge.profiler.measure import DECODE, PREFILL, fit_model
from flashedge.profiler.profile import Profile, save_profile
from flashedge.runtime.build import build
from flashedge.runtime.kv import build as module
from flashedge.runtime.kv.build import WIDE, choose_start_split
from flashedge.runtime.kv.curves import LINK_BYTES_PER_S, build_curves, load_curves
from flashedge.scheduling.kv.split import KvMemory
from tests.support.fake_nvml import fake_cards
from tests.support.fake_probe import FIGURES, sample

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


@pytest.mark.parametrize("window", [None, 128])
def test_the_start_counts_windows_and_states(monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    config, pair = load_config(), plan_pair(40 * MIB)
    curve = load_curves(pair, config).generator
    shape = module.load_shape(pair.generator, config)
    plain = module.build_start_cost(curve, pair.generator, config)
    bounded = replace(shape, bounded=BoundedLayers(layers=2, bytes=MIB, window=window))
    monkeypatch.setattr(module, "load_shape", lambda *_: bounded)
    cost, limit = (
        module.build_start_cost(curve, pair.generator, config),
        pair.generator.max_model_len,
    )
    assert cost.least_bytes == count_least_kv(bounded, limit, 1) > plain.least_bytes
    tokens = -(-308 // cost.block_tokens) * cost.block_tokens  # of a path of WIDE
    whole = bounded.count_path_bytes(tokens)
    assert whole - tokens < cost.kv_bytes_per_token * tokens <= whole
    assert (cost.block_tokens == bounded.state_tokens) == (window is None)


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


# ---------------------------------------------------------------- curves


SHAPE = ModelShape(  # of fake_probe
    name="fake", params=10**8, layers=25, heads=10, kv_heads=10, head_dim=100
)


def profile(fingerprint: dict[str, str] | None = None, *, skipped: object = None) -> Profile:
    """The profile of a generator and a verifier whose step times are a formula. skipped: a decode
    point without a measurement."""
    prefills = [sample(PREFILL, b, 0, new) for b in (1, 4) for new in (16, 64, 256)]
    points = [point for point in product((1, 8, 64), (32, 256, 768)) if point != skipped]
    decodes = [sample(DECODE, *point, 1) for point in points]
    return Profile(
        made_at="2026-11-21T10:00:00+00:00",
        quick=True,
        wall_s=1.0,
        load=0.0,
        fingerprint=fingerprint or {},
        kind="cpu",
        device=FIGURES,
        models=(fit_model("generator", prefills + decodes), fit_model("verifier", prefills)),
        warnings=(),
    )


def test_a_curve_passes_through_the_measured_points_and_the_fit_gives_missing_ones() -> None:
    curves = build_curves(profile(), (SHAPE, SHAPE))
    lacking = build_curves(profile(skipped=(64, 768)), (SHAPE, SHAPE))
    for batch, context in ((1, 32), (8, 256), (64, 768)):
        expected = sample(DECODE, batch, context, 1).seconds
        assert curves.generator.decode_at(context)(batch) == pytest.approx(expected)
    from_fit = lacking.generator.decode_at(768)(64)
    assert from_fit == pytest.approx(sample(DECODE, 64, 768, 1).seconds, rel=0.1)
    once = sample(PREFILL, 1, 0, 256).seconds
    assert curves.verifier.prefill_at(0, 256)(1) == pytest.approx(once, rel=0.02)
    assert curves.source == "profile of 2026-11-21T10:00:00+00:00 (quick)"


@pytest.mark.parametrize(("pinned", "expected"), [(True, 2e10), (False, 1e10)])
def test_the_slowest_pinned_transfer_is_the_link_speed(pinned: bool, expected: float) -> None:
    """Without one, it is half of the speed at which this machine copies."""
    rows = [
        {"direction": way, "pinned": is_pinned, "bytes_per_s": rate}
        for way, is_pinned, rate in (("a", pinned, 2e10), ("b", pinned, 3e10), ("b", False, 5e9))
    ]
    found = replace(profile(), device={**FIGURES, "transfers": rows})
    assert build_curves(found, (SHAPE, SHAPE)).link_bytes_per_s == expected


def test_a_profile_of_one_model_is_refused() -> None:
    whole = profile()
    with pytest.raises(ConfigError, match="both models"):
        build_curves(replace(whole, models=whole.models[:1]), (SHAPE, SHAPE))


def test_a_profile_is_used_if_it_was_made_on_this_device(config: Config) -> None:
    pair = find_pair("bundled", config)
    fallback = load_curves(pair, config)
    assert "roofline" in fallback.source
    assert "there is none yet" in fallback.source
    assert fallback.link_bytes_per_s == LINK_BYTES_PER_S

    path = locate_profile(pair, config)
    fingerprint = compute_profile_fingerprint(pair, config)
    save_profile(profile(fingerprint), path)
    assert load_curves(pair, config).source.startswith("profile of 2026-11-21")

    save_profile(profile({**fingerprint, "threads": "9"}), path)
    stale = load_curves(pair, config)
    assert "roofline" in stale.source
    assert "threads was 9" in stale.source
    decode = stale.generator.decode_at(256)
    assert 0 < decode(1) <= decode(64)
