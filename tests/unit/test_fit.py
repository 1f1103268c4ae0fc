"""`doctor --fit`: what is reckoned, and what a user is told."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_rig import Cli, cli_for
from fake_nvml import FakeNvml

from flashedge.benchmark.fit import Place, need_of, quantized, that_fit
from flashedge.cli.doctor.check import BAD, GOOD, WARNING, Check
from flashedge.cli.doctor.fit import fit
from flashedge.config import Config, load_config
from flashedge.errors import CheckpointError, NotFound
from flashedge.models.registry import ENGINE_OVERHEAD_BYTES, RESERVED_BYTES, find_pair, load_pairs

GIB = 1 << 30
NONE = FakeNvml(driver=False)
SMALL = "math-1.5b+skywork-1.5b"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return load_config({}, {"FLASHEDGE_HOME": str(tmp_path / "home")})


def told(name: str, gpu: str | None, config: Config, nvml: object = NONE) -> dict[str, Check]:
    return {check.name: check for check in fit(name, gpu, config, nvml)}


# ---------------------------------------------------------------- the reckoning


def test_the_parts_add_up(config: Config) -> None:
    need = need_of(find_pair("math-7b+skywork-1.5b", config), config)
    place = Place(name="card", memory_bytes=24 * GIB, held_bytes=3 * GIB)
    assert need.weights == (15_231_233_024, 3_087_431_682)
    assert need.path_bytes == (4096 * 57_344, 4096 * 28_672)
    left = 21 * GIB - sum(need.weights) - 2 * ENGINE_OVERHEAD_BYTES
    assert need.kv_bytes(place) == left
    assert need.paths(place, 1000) == left // (1000 * (57_344 + 28_672))


def test_one_byte_too_few_is_too_few(config: Config) -> None:
    need = need_of(find_pair(SMALL, config), config)
    exact = Place(name="card", memory_bytes=need.least_bytes + RESERVED_BYTES)
    less = Place(name="card", memory_bytes=exact.memory_bytes - 1)
    assert need.fits(exact)
    assert not need.fits(less)
    assert SMALL in set(that_fit(load_pairs(config).values(), exact, config))
    assert SMALL not in set(that_fit(load_pairs(config).values(), less, config))


def test_as_few_and_as_large_quantized_checkpoints_as_needed(config: Config) -> None:
    pair = find_pair("qwen-7b+skywork-1.5b", config)
    need = need_of(pair, config)
    for memory, method in ((17 * GIB, "GPTQ, 8 bits"), (13 * GIB, "AWQ, 4 bits")):
        found = quantized(pair, need, Place(name="card", memory_bytes=memory))
        assert found is not None
        assert [(role, q.method) for role, q in found.stand_ins] == [("generator", method)]
    assert quantized(pair, need, Place(name="card", memory_bytes=8 * GIB)) is None


def test_a_model_of_unknown_shape(config: Config) -> None:
    config.config_dir.mkdir(parents=True)
    (config.config_dir / "models.toml").write_text(
        '[generators.g]\nsource = "a/b"\ndtype = "bfloat16"\nmax_model_len = 8\n'
        '[pairs.p]\ndescription = "d"\ngenerator = "g"\nverifier = "skywork-1.5b"\n'
        'memory = { generator_kv_bytes = "1MiB", verifier_kv_bytes = "1MiB", total_bytes = 1 }\n'
        "max_step_tokens = 8\nmax_path_tokens = 8\n"
    )
    with pytest.raises(CheckpointError, match="the shape of a/b is not known") as e:
        told("p", "rtx4090", config)
    assert "architecture" in str(e.value.hint)
    assert SMALL in set(
        that_fit(load_pairs(config).values(), Place(name="c", memory_bytes=24 * GIB), config)
    )


# ---------------------------------------------------------------- what is said


def test_a_pair_that_fits_an_idle_card(config: Config) -> None:
    found = told("math-7b+skywork-1.5b", "RTX 4090", config)
    assert found["fit"].verdict == GOOD
    assert "4.0 GiB are left for KV, 16 paths of 3,072 tokens" in found["fit"].detail
    assert "for driver and display" in found["memory"].detail


def test_what_other_programs_hold_counts(config: Config) -> None:
    busy = FakeNvml(MemoryInfo=SimpleNamespace(total=24 * GIB, free=19 * GIB))
    for gpu in (None, "rtx4090"):
        found = told("math-7b+skywork-1.5b", gpu, config, busy)
        assert found["fit"].verdict == BAD
        assert "5.0 GiB of it in use now" in found["memory"].detail
    other = told("math-7b+skywork-1.5b", "rtx3090", config, busy)
    assert other["fit"].verdict == GOOD  # a card that is not here is idle


def test_a_quantized_checkpoint_that_would_fit_is_named(config: Config) -> None:
    found = told("qwen-7b+prm-7b", "rtx4090", config)["fit"]
    assert found.verdict == BAD
    assert "7.4 GiB are missing" in found.detail
    assert "Qwen/Qwen2.5-7B-Instruct-AWQ" in str(found.hint)


def test_else_the_pairs_that_fit(config: Config) -> None:
    found = told("math-7b+skywork-1.5b", "rtx4080", config)["fit"]
    assert SMALL in str(found.hint)
    tiny = FakeNvml(MemoryInfo=SimpleNamespace(total=6 * GIB, free=6 * GIB))
    assert "but `bundled`" in str(told(SMALL, None, config, tiny)["fit"].hint)


def test_a_plan_that_is_larger_than_what_is_left(config: Config) -> None:
    found = told(SMALL, "rtx4080", config)["fit"]
    assert found.verdict == WARNING
    assert "generator_kv_bytes" in str(found.hint)


def test_without_a_card_the_machines_memory(config: Config) -> None:
    assert "RAM" in told("bundled", None, config)["memory"].detail


def test_unknown_names(config: Config) -> None:
    with pytest.raises(NotFound):
        told("nobody", "rtx4090", config)
    with pytest.raises(NotFound, match="rtx9"):
        told(SMALL, "rtx9", config)


# ---------------------------------------------------------------- the command


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    cli: Cli = cli_for(tmp_path, monkeypatch, capfd)
    done = cli("doctor", "--fit", "qwen-7b+prm-7b", "--gpu", "rtx4090", "--json")
    assert done.code == 1
    assert [c["name"] for c in json.loads(done.out)] == ["memory", "weights", "engines", "fit"]
    assert cli("doctor", "--fit", SMALL, "--gpu", "rtx4090").code == 0
    assert cli("doctor", "--gpu", "rtx4090").code == 2
    missing = cli("doctor", "--fit", "nobody")
    assert missing.code == 2
    assert "there is no pair" in missing.err
