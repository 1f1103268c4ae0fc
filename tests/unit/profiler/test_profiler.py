"""The profiler without an engine or a card: fits, probes, files, NVML, data sheets."""

import json
import random
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flashedge.cli import profile as shown
from flashedge.profiler import ProfileError, bench, gpu, measure
from flashedge.profiler.gpu import compare_with_sheet, describe_device, find_warnings, read_cards
from flashedge.profiler.measure import DECODE, PREFILL, build_grid, fit_model, measure_steps
from flashedge.profiler.profile import Profile, load_profile, save_profile
from flashedge.profiler.roofline import Fit, Sample, fit
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_probe import FIGURES, TRUTH, FakeProbe, sample

FINGERPRINT = {"device": "a card", "driver": "1", "vllm": "0.32.0", "torch": "2.13", "pair": "p"}


def quiet(share: float, what: str) -> None:
    pass


def steps(truth: Fit = TRUTH) -> list[Sample]:
    """A grid on both sides of the ridge."""
    prefills = product((1, 4, 16), (1, 4, 16, 64, 256, 1024))
    decodes = product((1, 8, 64), (64, 512, 4096))
    return [
        *(sample(PREFILL, batch, 0, new, truth=truth) for batch, new in prefills),
        *(sample(DECODE, batch, context, 1, truth=truth) for batch, context in decodes),
    ]


def read_truth(found: Fit) -> list[float | None]:
    return [found.overhead_s, found.sequence_s, found.flops_per_s, found.bytes_per_s]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"overhead_s": 0.0, "sequence_s": 3e-4},
        {"flops_per_s": 1e14, "bytes_per_s": 1e12},
        {"overhead_s": 0.01, "flops_per_s": 2e11},
    ],
)
def test_a_fit_finds_the_roofline_that_made_the_points(changes: dict[str, float]) -> None:
    truth = replace(TRUTH, **changes)
    found = fit(steps(truth))
    assert read_truth(found) == pytest.approx(read_truth(truth), rel=1e-6)
    assert (found.p90_error < 1e-6, found.samples) == (True, len(steps()))


def test_a_fit_through_noise_and_outliers_and_its_errors() -> None:
    rng = random.Random(5)
    noisy = [replace(s, seconds=s.seconds * rng.lognormvariate(0, 0.02)) for s in steps()]
    noisy[3] = replace(noisy[3], seconds=noisy[3].seconds * 4)
    noisy[20] = replace(noisy[20], seconds=noisy[20].seconds * 3)
    found = fit(noisy)
    assert read_truth(found) == pytest.approx(read_truth(TRUTH), rel=0.15)
    assert 0.003 < found.median_error < 0.03
    found = fit([*(replace(s, seconds=s.seconds * 2) for s in steps()[:5]), *steps()[5:]])
    assert (found.median_error < 0.02, found.p90_error > 0.3) == (True, True), "the worst tenth's"


def test_a_fit_makes_up_no_bound_and_refuses_too_little_or_nonsense() -> None:
    flat = fit([s for s in steps() if s.flops / s.bytes > 20])
    assert (flat.bytes_per_s, flat.flops_per_s) == (None, pytest.approx(1e12))
    streaming = fit([s for s in steps() if s.flops / s.bytes < 5])
    assert (streaming.flops_per_s, streaming.bytes_per_s) == (None, pytest.approx(1e11))
    with pytest.raises(ProfileError, match="3 steps were measured; a fit needs 4"):
        fit(steps()[:3])
    with pytest.raises(ProfileError, match="has no time"):
        fit([replace(s, seconds=0.0) for s in steps()])


@pytest.mark.parametrize("quick", [True, False])
async def test_a_profile_through_a_probe_finds_its_model(quick: bool) -> None:
    reported: list[float] = []
    probes = (FakeProbe(), FakeProbe("verifier", decodes=False))
    models = await measure.profile_models(
        probes, quick=quick, on_progress=lambda p, _: reported.append(p)
    )
    fits = {model.name: list(model.fits) for model in models}
    assert fits == {"generator": [PREFILL, DECODE], "verifier": [PREFILL]}
    assert all(found.p90_error < 1e-6 for model in models for found in model.fits.values())
    assert models[0].fits[DECODE].bytes_per_s == pytest.approx(TRUTH.bytes_per_s)
    assert models[1].fits[PREFILL].flops_per_s == pytest.approx(TRUTH.flops_per_s)
    assert reported == sorted(reported)
    assert 0 <= reported[0] < reported[-1] <= 1


async def test_quick_measures_less_both_repeat_and_the_grid_stays_within_the_engine() -> None:
    for quick, repeats in ((True, 3), (False, 7)):
        probe = FakeProbe()
        await measure_steps(probe, quick=quick, limit_s=1e9, on_progress=quiet)
        assert len(probe.asked) == 1 + len(build_grid(probe, quick)) * repeats
    assert len(build_grid(probe, quick=True)) < len(build_grid(probe, quick=False))
    probe.max_context, probe.max_sequences, probe.kv_tokens = 1024, 16, 8000
    for _, sequences, tokens in build_grid(probe, quick=False):
        assert (tokens < 1024, sequences <= 16, sequences * tokens <= 4000) == (True, True, True)


async def test_the_time_limit_leaves_out_the_dearest() -> None:
    whole, cut = FakeProbe(), FakeProbe()
    await measure_steps(whole, quick=True, limit_s=1e9, on_progress=quiet)
    limit_s = 0.8 * whole.read_clock_s() / 3
    samples = await measure_steps(cut, quick=True, limit_s=limit_s, on_progress=quiet)
    assert len(samples) < len(build_grid(cut, True))
    assert cut.asked == whole.asked[: len(cut.asked)]
    slow = FakeProbe("verifier", decodes=False, pace=1000)
    with pytest.raises(ProfileError, match=r"verifier: only \d prefill steps could be measured"):
        await measure_steps(slow, quick=True, limit_s=3, on_progress=quiet)


def made() -> Profile:
    return Profile(
        made_at="2026-01-01T00:00:00+00:00",
        quick=True,
        wall_s=9.5,
        load=0.25,
        fingerprint=FINGERPRINT,
        kind="cpu",
        device=FIGURES,
        warnings=("w",),
        models=(fit_model("generator", steps()),),
    )


def test_a_profile_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "new" / "p.json"
    save_profile(made(), path)
    found = load_profile(path, FINGERPRINT).profile
    written = json.loads(path.read_text())
    assert found.to_json() == {**written, "models": found.to_json()["models"], "warnings": ("w",)}
    assert found.models == made().models
    assert found.gemm_flops_per_s == {"float32": 9e10, "bfloat16": 2e11}
    with pytest.raises(ProfileError, match="can't write"):
        save_profile(made(), path.parent)
    assert (found.bytes_per_s, list(tmp_path.rglob("*"))) == (2e10, [path.parent, path])


@pytest.mark.parametrize("name", list(FINGERPRINT))
def test_whatever_changes_invalidates_and_is_named(tmp_path: Path, name: str) -> None:
    save_profile(made(), tmp_path / "p.json")
    found = load_profile(tmp_path / "p.json", {**FINGERPRINT, name: "another"})
    assert (found.profile, found.changed) == (None, ((name, FINGERPRINT[name], "another"),))
    assert f"{name} was {FINGERPRINT[name]}, is another" in (found.why or "")


def test_a_missing_broken_or_foreign_file_is_no_profile(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    assert load_profile(path, FINGERPRINT).why == "there is none yet"
    save_profile(made(), path)
    whole = path.read_text()
    other = json.loads(whole)
    for text, word in (
        (whole[: len(whole) // 2], "is not a profile"),
        ("[]", "is not a profile"),
        (json.dumps({**other, "version": 99}), "its version is 99"),
        (json.dumps({**other, "models": [{}]}), "is not a profile"),
        (json.dumps({**other, "models": [{}]}), "models.0"),
        (json.dumps({**other, "device": {}}), "is not a profile: KeyError"),
        (json.dumps({**other, "device": {"gemm": [1], "copies": []}}), "is not a profile"),
        (json.dumps({**other, "device": {"gemm": [], "copies": []}}), "is not a profile"),
    ):
        path.write_text(text)
        found = load_profile(path, FINGERPRINT)
        assert (found.profile, word in (found.why or "")) == (None, True), text[:40]


def test_rows_and_roofs_tell_the_figures() -> None:
    profile = made()
    rows = {"GEMM float32": "90 GFLOP/s", "memory, copy": "20 GB/s"}
    rows |= {"host to device, pinned": "25 GB/s"}
    assert rows.items() <= dict(shown.list_device_rows(profile)).items()
    reported = [row for row in shown.list_fit_rows(profile) if row[0] == "generator prefill"]
    assert reported == [("generator prefill", "2 ms", "10 µs", "1 T", "100 G", "0.0% / 0.0%")]
    lines, marks = shown.build_roofline(profile)
    roof = lines["roof float32"]
    assert [y for _, y in roof][-2:] == [9e10, 9e10]
    assert roof[1][0] == pytest.approx(9e10 / 2e10)
    assert roof[0][1] == pytest.approx(roof[0][0] * 2e10)
    assert marks == {name for name in lines if not name.startswith("roof")}
    figures = (
        shown.format_short_time(0),
        shown.format_short_time(2.5e-9),
        shown.format_rate(5, "B/s"),
    )
    assert figures == ("0", "2 ns", "5 B/s")


def test_a_card_in_order_gives_no_warning() -> None:
    nvml = FakeNvml()
    (card,) = read_cards(nvml)
    assert (card.name, card.driver) == ("NVIDIA GeForce RTX 4090", "580.95")
    assert (list(find_warnings([card], 64 << 30)), nvml.open) == ([], 0)
    reported = describe_device("cuda", nvml)
    assert reported["driver"] == "580.95"
    assert reported["device"].startswith("NVIDIA GeForce RTX 4090 (24 GiB); ")
    assert set(describe_device("cpu")) == {"device", "driver"}


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"CurrentClocksEventReasons": 0x4}, "slowed by the power limit (2500 of 3105 MHz)"),
        ({"Temperature": 88}, "is at 88 °C; it slows down at 90"),
        ({"PowerManagementLimit": 300_000}, "limited to 300 of 450 W"),
        ({"MemoryInfo": SimpleNamespace(total=80 << 30, free=0)}, "has 64 GiB of RAM"),
    ],
)
def test_what_slows_a_card_is_reported(answers: dict[str, Any], words: str) -> None:
    (warning,) = find_warnings(read_cards(FakeNvml(**answers)), 64 << 30)
    assert words in warning


def test_a_card_that_answers_little_still_counts_and_none_is_an_error() -> None:
    shy = dict.fromkeys(("DisplayActive", "Temperature", "MaxClockInfo", "PowerManagementLimit"))
    old = {"CurrentClocksEventReasons": None, "CurrentClocksThrottleReasons": 0x8}
    (warning,) = find_warnings(read_cards(FakeNvml(**shy, **old)), 64 << 30)
    assert warning == "NVIDIA GeForce RTX 4090 is slowed by a hardware slowdown (heat or power)"
    for nvml, words in (
        (FakeNvml(driver=False), "Driver Not Loaded"),
        (FakeNvml(cards=0), "no NVIDIA card"),
        (FakeNvml(MemoryInfo=None), "does not answer"),
    ):
        with pytest.raises(ProfileError, match=words):
            read_cards(nvml)
        with pytest.raises(ProfileError, match=words):
            describe_device("cuda", nvml)


def test_a_busy_machine_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(measure.os, "getloadavg", lambda: (3.5, 0, 0))
    assert measure.find_device_warnings("cpu") == ("the machine was busy: 3.5 programs on 2 cores",)
    monkeypatch.setattr(measure.os, "getloadavg", lambda: (1.5, 0, 0))
    assert measure.find_device_warnings("cpu") == ()
    assert len(measure.find_device_warnings("cuda", FakeNvml(DisplayActive=1))) >= 1


def test_figures_are_compared_with_the_sheet_of_exactly_that_card() -> None:
    expected = ("150 of 165.2 TFLOP/s (91%), 920 of 1008 GB/s (91%)", False)
    assert compare_with_sheet("NVIDIA GeForce RTX 4090", 150e12, 920e9) == expected
    assert compare_with_sheet("NVIDIA GeForce RTX 4090", 90e12, 920e9)[1], "it is low"
    assert compare_with_sheet("NVIDIA H200", None, 2000e9)[1]
    assert compare_with_sheet("NVIDIA GeForce RTX 4090 Laptop GPU", 80e12, 500e9) is None
    assert all(sheet.tflops > 10 and sheet.gb_per_s > 100 for sheet in gpu.SHEETS.values())


def test_the_benchmark_measures_this_cpu_or_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[float] = []
    figures = bench.measure_device("cpu", 1, 0.2, lambda share, what: reported.append(share))
    assert {row["dtype"] for row in figures["gemm"]} == {"float32", "bfloat16"}
    for row in figures["gemm"]:
        assert row["flops_per_s"] == pytest.approx(2 * row["n"] ** 3 / row["seconds"])
    assert all(row["bytes_per_s"] > 1e8 for row in figures["copies"])
    assert figures["transfers"] == []
    assert 0 < figures["launch_s"] < 0.01
    assert reported == sorted(reported)
    broken = (sys.executable, "-c", "raise SystemExit('no kernel image for this card')")
    monkeypatch.setattr(bench, "COMMAND", broken)
    with pytest.raises(ProfileError, match="no kernel image for this card"):
        bench.measure_device("cpu", 1, 0.1, quiet)


def test_a_benchmark_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "START_S", 0.5)
    hung = "import sys, time; sys.stderr.write('a warning\\n' * 50_000); time.sleep(60)"
    monkeypatch.setattr(bench, "COMMAND", (sys.executable, "-c", hung))
    with pytest.raises(ProfileError, match="the benchmark did not end within 1 s"):
        bench.measure_device("cpu", 1, 0.1, quiet)
    noisy = hung.replace("time.sleep(60)", 'print(\'onednn\\n{"figures": {"launch_s": 1}}\')')
    monkeypatch.setattr(bench, "START_S", 30.0)
    monkeypatch.setattr(bench, "COMMAND", (sys.executable, "-c", noisy))
    assert bench.measure_device("cpu", 1, 0.1, quiet) == {"launch_s": 1}


def test_the_profiler_imports_nothing_of_ours_and_no_torch() -> None:
    code = (
        "import importlib, pkgutil, sys\n"
        "import flashedge.profiler as package\n"
        "for module in pkgutil.iter_modules(package.__path__):\n"
        "    importlib.import_module(f'{package.__name__}.{module.name}')\n"
        "ours = {m for m in sys.modules if m.startswith('flashedge.')}\n"
        "others = {m for m in ours if not m.startswith(package.__name__)}\n"
        "print(others | {'vllm', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
