"""`flashedge profile`, what `doctor` says of it, and the renewal before a daemon starts."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flashedge.cli import profile
from flashedge.cli.doctor.command import check_cards, judge_profile
from flashedge.config import Config, load_config
from flashedge.daemon import control as daemon_control
from flashedge.daemon.files import prepare_state_dir
from flashedge.engine.profiles import locate_profile
from flashedge.engine.vllm import pair as vllm_pair
from flashedge.errors import EngineError
from flashedge.models.registry import find_pair
from flashedge.models.specs import Pair
from flashedge.profiler import ProfileError, measure
from flashedge.profiler.profile import Profile
from tests.support.cli_rig import Cli, Patch, cli_for, failing
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_probe import FIGURES, FakeProbe


class FakePair:
    """Engines that are formulas. fails: what `start` raises."""

    alive = started = measured = 0
    fails: Exception | None = None

    def __init__(self, pair: Pair, config: Config) -> None:
        pass

    async def start(self) -> None:
        FakePair.started += 1
        FakePair.alive += 1
        os.write(1, b"noise of an engine\n")
        if FakePair.fails is not None:
            raise FakePair.fails

    async def measure_memory(self) -> None:
        assert FakePair.alive
        FakePair.measured += 1

    async def stop(self) -> None:
        FakePair.alive -= 1

    def build_probes(self) -> tuple[FakeProbe, FakeProbe]:
        return FakeProbe(), FakeProbe("verifier", decodes=False)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: Patch, capfd: pytest.CaptureFixture[str]) -> Cli:
    def device(kind: str, threads: int, limit_s: float, on_progress: Any) -> dict[str, Any]:
        on_progress(0.5, "GEMM")
        return FIGURES

    monkeypatch.setattr(measure, "measure_device", device)
    monkeypatch.setattr(measure, "find_device_warnings", lambda kind: ())
    monkeypatch.setattr(vllm_pair, "VllmPair", FakePair)
    for name, value in (("alive", 0), ("started", 0), ("measured", 0), ("fails", None)):
        monkeypatch.setattr(FakePair, name, value)
    return cli_for(tmp_path, monkeypatch, capfd)


def kept() -> Path:
    config = load_config()
    return locate_profile(find_pair("bundled", config), config)


def spoil(name: str = "driver") -> None:
    data = json.loads(kept().read_text())
    data["fingerprint"][name] = "older"
    kept().write_text(json.dumps(data))


def test_it_measures_tells_draws_and_keeps(cli: Cli, tmp_path: Path) -> None:
    picture = tmp_path / "roof.svg"
    done = cli.ends(0, "", "profile", "--quick", "--plot", str(picture))
    for words in ("GEMM float32", "90 GFLOP/s", "generator decode", "verifier prefill", "Roofline"):
        assert words in done.out
    assert "noise of an engine" not in done.out + done.err
    assert str(kept()) in done.err.replace("\n", "")
    assert ("<svg" in picture.read_text(), FakePair.alive) == (True, 0)
    stored = json.loads(kept().read_text())
    assert (stored["version"], stored["quick"]) == (1, True)
    assert stored["fingerprint"]["pair"].startswith("bundled ")


def test_show_and_if_needed_take_what_is_kept(cli: Cli) -> None:
    first = json.loads(cli("profile", "--json").out)
    assert json.loads(cli("profile", "--show", "--json").out) == first
    assert cli("profile", "--if-needed").code == 0
    assert (FakePair.started, FakePair.measured) == (1, 1)
    spoil()
    cli.ends(2, "driver was older, is Linux", "profile", "--show")
    assert cli("profile", "--if-needed", "--quick").code == 0
    assert FakePair.started == 2


def test_bad_input_is_refused_before_anything_starts(cli: Cli) -> None:
    for arguments, words in (
        ("--show", "pair bundled has no profile that fits: there is none yet"),
        ("--show --quick", "--show measures nothing; leave out --quick"),
        ("--plot roof.gif", "choose a path that ends in .svg or .png"),
        ("--pair bundeld", "did you mean"),
    ):
        cli.ends(2, words, "profile", *arguments.split())
    assert FakePair.started == 0


def test_a_running_daemon_is_not_disturbed(cli: Cli, monkeypatch: Patch) -> None:
    monkeypatch.setattr("flashedge.daemon.files.find_holder", lambda config: 4242)
    done = cli.ends(4, "a daemon runs (process 4242)", "profile")
    assert ("flashedge down && flashedge profile" in done.err, FakePair.started) == (True, 0)


def test_what_fails_is_one_error_and_nothing_is_kept(cli: Cli, monkeypatch: Patch) -> None:
    FakePair.fails = EngineError("the generator engine did not start: no memory")
    cli.ends(3, "error: the generator engine did not start: no memory", "profile")
    assert FakePair.alive == 0
    FakePair.fails = None
    broken = ProfileError("the device could not be measured: no kernel", hint="hint it")
    monkeypatch.setattr(measure, "measure_device", failing(broken))
    assert "hint it" in cli.ends(3, "no kernel", "profile").err
    assert not kept().exists()


def test_a_folder_that_takes_no_file_is_named(cli: Cli) -> None:
    config = load_config()
    prepare_state_dir(config)
    (config.state_dir / "profiles").write_text("in the way")
    cli.ends(5, "can't write", "profile", "--quick")


def test_up_measures_again_only_what_changed(cli: Cli, monkeypatch: Patch) -> None:
    monkeypatch.setattr(daemon_control, "start", failing(EngineError("stop here")))
    assert "stop here" in cli("up").err
    assert FakePair.started == 0, "a first profile is the set-up's"
    cli("profile", "--quick")
    cli("up")
    assert FakePair.started == 1
    spoil("device")
    said = "measuring the profile again: it was made on something else: device was older"
    assert said in cli("up").err
    assert FakePair.started == 2
    cli("up")
    assert FakePair.started == 2


def test_a_renewal_that_fails(
    cli: Cli, monkeypatch: Patch, capfd: pytest.CaptureFixture[str]
) -> None:
    cli("profile", "--quick")
    spoil()
    FakePair.fails = EngineError("no memory")
    profile.renew_profile(load_config())
    assert "the profile was not measured: no memory" in capfd.readouterr().err


def check(cli: Cli) -> dict[str, Any]:
    checks = json.loads(cli("doctor", "--json").out)
    return next(c for c in checks if c["name"] == "profile")


def test_doctor_tells_the_figures_or_what_changed(cli: Cli, monkeypatch: Patch) -> None:
    monkeypatch.setenv("FLASHEDGE_PORT", "0")
    none = check(cli)
    assert (none["detail"], none["verdict"]) == ("there is none yet", "ok")
    cli("profile", "--quick")
    good = check(cli)
    assert good["detail"].startswith("90 GFLOP/s float32, 200 GFLOP/s bfloat16, 20 GB/s memory")
    assert (good["verdict"], good["hint"]) == ("ok", None)
    spoil()
    stale = check(cli)
    assert (stale["verdict"], stale["hint"]) == ("warning", "flashedge profile --quick")
    assert "driver was older" in stale["detail"]


def test_doctor_compares_a_card_with_its_data_sheet(cli: Cli) -> None:
    cli("profile", "--quick")
    cpu = Profile.from_json(json.loads(kept().read_text()))
    named = {**cpu.fingerprint, "device": "NVIDIA GeForce RTX 4090 (24 GiB); a host"}
    far = replace(cpu, kind="cuda", fingerprint=named)
    told: Any = judge_profile(far)
    assert told.verdict == "warning"
    assert "of the data sheet: 0 of 165.2 TFLOP/s (0%), 20 of 1008 GB/s (2%)" in told.detail
    gemm = {"dtype": "bfloat16", "n": 8192, "seconds": 1.0, "flops_per_s": 150e12}
    copies = [{"bytes": 1 << 30, "bytes_per_s": 930e9}]
    near = {**FIGURES, "gemm": [gemm], "copies": copies}
    assert isinstance(judge_profile(replace(far, device=near)), str), "nothing to warn of"
    slowed = replace(far, device=near, warnings=("the card is slowed by heat",))
    told = judge_profile(slowed)
    assert told.verdict == "warning"


def test_doctor_warns_of_a_slowed_card() -> None:
    _, told = check_cards(FakeNvml(CurrentClocksEventReasons=0x20, DisplayActive=1))
    assert told.verdict == "warning"
    for said in ("slowed by heat", "drives a display"):
        assert said in told.detail
    assert [check.name for check in check_cards(FakeNvml(driver=False))] == ["gpu"]
