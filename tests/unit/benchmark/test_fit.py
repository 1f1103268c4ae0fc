"""`doctor --fit`: the estimate, and what a user reads."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from flashedge.benchmark.fit import CardMemory, choose_quantized, estimate_need, list_fitting
from flashedge.benchmark.simulate import Question, build_bench
from flashedge.cli.doctor.check import BAD, GOOD, WARNING, Check
from flashedge.cli.doctor.fit import check_fit
from flashedge.config import Config, load_config
from flashedge.errors import CheckpointError, NotFound
from flashedge.models.registry import find_pair, load_pairs
from flashedge.models.specs import ENGINE_OVERHEAD_BYTES, RESERVED_BYTES
from tests.support.cli_rig import Cli, cli_for
from tests.support.fake_nvml import FakeNvml

GIB = 1 << 30
NONE = FakeNvml(driver=False)
SMALL = "math-1.5b+skywork-1.5b"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return load_config({}, {"FLASHEDGE_HOME": str(tmp_path / "home")})


def checks_of(name: str, gpu: str | None, config: Config, nvml: object = NONE) -> dict[str, Check]:
    return {check.name: check for check in check_fit(name, gpu, config, nvml)}


# ---------------------------------------------------------------- the estimate


def test_the_parts_add_up(config: Config) -> None:
    need = estimate_need(find_pair("math-7b+skywork-1.5b", config), config)
    place = CardMemory(name="card", memory_bytes=24 * GIB, reserved_bytes=3 * GIB)
    assert need.weights == (15_231_233_024, 3_087_431_682)
    assert need.path_bytes == (4096 * 57_344, 4096 * 28_672)
    left = 21 * GIB - sum(need.weights) - 2 * ENGINE_OVERHEAD_BYTES
    assert need.kv_bytes(place) == left
    assert need.count_paths(place, 1000) == left // (1000 * (57_344 + 28_672))


def test_one_byte_too_few_is_too_few(config: Config) -> None:
    need = estimate_need(find_pair(SMALL, config), config)
    exact = CardMemory(name="card", memory_bytes=need.least_bytes + RESERVED_BYTES)
    less = CardMemory(name="card", memory_bytes=exact.memory_bytes - 1)
    assert need.fits(exact)
    assert not need.fits(less)
    assert SMALL in set(list_fitting(load_pairs(config).values(), exact, config))
    assert SMALL not in set(list_fitting(load_pairs(config).values(), less, config))


def test_as_few_and_as_large_quantized_checkpoints_as_needed(config: Config) -> None:
    pair = find_pair("qwen-7b+skywork-1.5b", config)
    need = estimate_need(pair, config)
    for memory, method in ((17 * GIB, "GPTQ, 8 bits"), (13 * GIB, "AWQ, 4 bits")):
        found = choose_quantized(pair, need, CardMemory(name="card", memory_bytes=memory))
        assert found is not None
        assert [(role, q.method) for role, q in found.replacements] == [("generator", method)]
    assert choose_quantized(pair, need, CardMemory(name="card", memory_bytes=8 * GIB)) is None


def test_a_model_of_unknown_shape(config: Config) -> None:
    config.config_dir.mkdir(parents=True)
    (config.config_dir / "models.toml").write_text(
        '[generators.g]\nsource = "a/b"\ndtype = "bfloat16"\nmax_model_len = 8\n'
        '[pairs.p]\ndescription = "d"\ngenerator = "g"\nverifier = "skywork-1.5b"\n'
        'memory = { generator_kv_bytes = "1MiB", verifier_kv_bytes = "1MiB", total_bytes = 1 }\n'
        "max_step_tokens = 8\nmax_path_tokens = 8\n"
    )
    with pytest.raises(CheckpointError, match="the shape of a/b is not known") as e:
        checks_of("p", "rtx4090", config)
    assert "architecture" in str(e.value.hint)
    assert SMALL in set(
        list_fitting(
            load_pairs(config).values(), CardMemory(name="c", memory_bytes=24 * GIB), config
        )
    )


# ---------------------------------------------------------------- the checks


def test_a_pair_that_fits_an_idle_card(config: Config) -> None:
    found = checks_of("math-7b+skywork-1.5b", "RTX 4090", config)
    assert found["fit"].verdict == GOOD
    assert "4.0 GiB are left for KV, enough for 16 paths of 3,072 tokens" in found["fit"].detail
    assert "for driver and display" in found["memory"].detail


def test_what_other_programs_hold_counts(config: Config) -> None:
    busy = FakeNvml(MemoryInfo=SimpleNamespace(total=24 * GIB, free=19 * GIB))
    for gpu in (None, "rtx4090"):
        found = checks_of("math-7b+skywork-1.5b", gpu, config, busy)
        assert found["fit"].verdict == BAD
        assert "5.0 GiB of it in use now" in found["memory"].detail
    other = checks_of("math-7b+skywork-1.5b", "rtx3090", config, busy)
    assert other["fit"].verdict == GOOD  # a card that is not here is idle


def test_a_quantized_checkpoint_that_would_fit_is_named(config: Config) -> None:
    found = checks_of("qwen-7b+prm-7b", "rtx4090", config)["fit"]
    assert found.verdict == BAD
    assert "7.4 GiB are missing" in found.detail
    assert "Qwen/Qwen2.5-7B-Instruct-AWQ" in str(found.hint)


def test_else_the_pairs_that_fit(config: Config) -> None:
    found = checks_of("math-7b+skywork-1.5b", "rtx4080", config)["fit"]
    assert SMALL in str(found.hint)
    tiny = FakeNvml(MemoryInfo=SimpleNamespace(total=6 * GIB, free=6 * GIB))
    assert "but `bundled`" in str(checks_of(SMALL, None, config, tiny)["fit"].hint)


def test_a_plan_that_is_larger_than_what_is_left(config: Config) -> None:
    found = checks_of(SMALL, "rtx4080", config)["fit"]
    assert found.verdict == WARNING
    assert "generator_kv_bytes" in str(found.hint)


def test_without_a_card_the_machines_memory(config: Config) -> None:
    assert "RAM" in checks_of("bundled", None, config)["memory"].detail


def test_unknown_names(config: Config) -> None:
    with pytest.raises(NotFound):
        checks_of("nobody", "rtx4090", config)
    with pytest.raises(
        NotFound, match="'a100' is no card that FlashEdge knows; known: rtx4090"
    ) as e:
        checks_of(SMALL, "a100", config)
    assert e.value.hint == "for another card give its memory: --gpu 80GiB"


def test_a_card_given_by_its_memory(config: Config) -> None:
    large = checks_of("math-7b+prm-7b", "80GiB", config)
    assert large["fit"].verdict == GOOD
    assert "80.0 GiB" in large["memory"].detail
    assert checks_of("math-7b+prm-7b", "24 GiB", config)["fit"].verdict == BAD
    with pytest.raises(NotFound):  # bytes without a unit are a card's name
        checks_of(SMALL, "4090000", config)


def test_the_simulation_has_the_same_kv_memory(config: Config) -> None:
    pair = "math-7b+skywork-1.5b"
    question = Question(gpu="rtx4090", pair=pair, strategy="beam", n=4, share=None)
    place = CardMemory(name="card", memory_bytes=24_564 << 20)
    expected = estimate_need(find_pair(pair, config), config).kv_bytes(place)
    assert build_bench(question, config).setup.kv_bytes == expected


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
