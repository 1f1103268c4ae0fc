"""`doctor --fit`: the estimate, and what a user reads."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flashedge.cli.doctor.device_checks import BAD, GOOD, WARNING, Check
from flashedge.cli.doctor.fit import check_fit, find_place
from flashedge.config import Config, load_config
from flashedge.errors import CheckpointError, ConfigError, NotFound
from flashedge.models.memory.card_memory import CardMemory, build_idle_card
from flashedge.models.memory.fit import choose_quantized, find_need, list_fitting, plan_memory
from flashedge.models.registry import find_pair, load_pairs
from scripts.lab.benchmark.simulate import Question, build_bench
from tests.support.cli_rig import Cli, cli_for
from tests.support.fake_nvml import FakeNvml

GIB = 1 << 30
NONE = FakeNvml(driver=False)
SMALL = "math-1.5b+skywork-1.5b"


def card_of(memory_bytes: int) -> CardMemory:
    return CardMemory(
        name="card", memory_bytes=memory_bytes, held_bytes=0, reserve_bytes=0, is_measured=True
    )


def checks_of(name: str, gpu: str | None, config: Config, nvml: object = NONE) -> dict[str, Check]:
    return {check.name: check for check in check_fit(name, gpu, config, nvml)}


def test_the_parts_add_up(config: Config) -> None:
    place = card_of(24 * GIB)
    need = find_need(find_pair("math-7b+skywork-1.5b", config), config, place)
    assert need.weights == (15_231_233_024, 3_087_431_682)
    assert need.path_bytes == (4096 * 57_344, 4096 * 28_672)
    assert need.is_estimate
    left = 24 * GIB - sum(need.weights) - sum(engine.overhead for engine in need.engines)
    assert need.kv_bytes(place) == left
    assert need.count_paths(place, 1000) == left // (1000 * (57_344 + 28_672))


def test_one_byte_too_few_is_too_few(config: Config) -> None:
    pair = find_pair(SMALL, config)
    least = find_need(pair, config, card_of(0)).least_bytes  # with the fewest sequences
    exact, less = card_of(least), card_of(least - 1)
    assert find_need(pair, config, exact).fits(exact)
    assert not find_need(pair, config, less).fits(less)
    assert SMALL in set(list_fitting(load_pairs(config).values(), exact, config))
    assert SMALL not in set(list_fitting(load_pairs(config).values(), less, config))


def test_fewer_sequences_where_the_pair_does_not_fit_otherwise(config: Config) -> None:
    pair = find_pair("qwen-7b+skywork-1.5b", config)
    ample = find_need(pair, config, card_of(24 * GIB))
    assert ample.sequences == 128
    tight = card_of(ample.least_bytes - 1)
    assert find_need(pair, config, tight).sequences == 64
    assert find_need(pair, config, tight).fits(tight)
    fixed = load_config({"max_num_seqs": 128}, {"FLASHEDGE_HOME": str(config.state_dir.parent)})
    assert find_need(pair, fixed, tight).sequences == 128
    assert not find_need(pair, fixed, tight).fits(tight)


def test_as_few_and_as_large_quantized_checkpoints_as_needed(config: Config) -> None:
    pair = find_pair("qwen-7b+skywork-1.5b", config)
    for memory, method in ((16 * GIB, "GPTQ, 8 bits"), (12 * GIB, "AWQ, 4 bits")):
        place = card_of(memory)
        found = choose_quantized(pair, find_need(pair, config, place), place)
        assert found is not None
        assert [(role, q.method) for role, q in found.replacements] == [("generator", method)]
    place = card_of(8 * GIB)
    assert choose_quantized(pair, find_need(pair, config, place), place) is None


def test_a_model_of_unknown_shape(config: Config) -> None:
    config.config_dir.mkdir(parents=True)
    (config.config_dir / "models.toml").write_text(
        '[generators.g]\nsource = "a/b"\ndtype = "bfloat16"\nmax_model_len = 8\n'
        '[pairs.p]\ndescription = "d"\ngenerator = "g"\nverifier = "skywork-1.5b"\n'
        "max_step_tokens = 8\nmax_path_tokens = 8\n"
    )
    with pytest.raises(CheckpointError, match="the shape of a/b is not known") as e:
        checks_of("p", "rtx4090", config)
    assert "architecture" in str(e.value.hint)
    place = build_idle_card("c", 24 * GIB)
    assert SMALL in set(list_fitting(load_pairs(config).values(), place, config))


def test_a_pair_that_fits_an_idle_card(config: Config) -> None:
    found = checks_of("math-1.5b+prm-7b", "RTX 4090", config)
    assert found["fit"].verdict == GOOD
    assert "paths of 3,072 tokens that share nothing" in found["fit"].detail
    assert "kept by the driver of an idle card" in found["memory"].detail
    assert "estimated, 10% added" in found["engines"].detail
    assert "128 sequences a step" in found["engines"].detail


def test_what_other_programs_hold_counts(config: Config) -> None:
    busy = FakeNvml(MemoryInfo=SimpleNamespace(total=24 * GIB, free=19 * GIB))
    for gpu in (None, "rtx4090"):
        found = checks_of("math-7b+skywork-1.5b", gpu, config, busy)
        assert found["fit"].verdict == BAD
        assert "5.0 GiB of it in use now" in found["memory"].detail
    other = checks_of("math-7b+skywork-1.5b", "rtx3090", config, busy)
    assert other["fit"].verdict != BAD  # a card that is not here is idle


def test_the_programs_that_hold_the_memory_are_named(config: Config) -> None:
    found = [SimpleNamespace(pid=1 << 30, usedGpuMemory=5 * GIB)]
    memory = SimpleNamespace(total=24 * GIB, free=19 * GIB)
    busy = FakeNvml(MemoryInfo=memory, ComputeRunningProcesses=found)
    told = "other programs hold memory: a program (process 1073741824) 5.0 GiB"
    checks = checks_of("math-7b+skywork-1.5b", None, config, busy)
    assert told in checks["memory"].detail
    assert told in checks["fit"].detail
    with pytest.raises(ConfigError, match="other programs hold memory: a program"):
        plan_memory(
            find_pair("math-7b+skywork-1.5b", config), config, find_place(None, config, busy)
        )


@pytest.mark.parametrize(
    ("name", "gpu", "hint"),
    [
        (
            "qwen-7b+prm-7b",
            "rtx4090",
            "flashedge up --pair qwen-7b-gptq+prm-7b-fp8 (these fit too: qwen-7b-awq",
        ),
        ("qwen-7b+shepherd-7b", "rtx4090", "generator Qwen/Qwen2.5-7B-Instruct-AWQ (AWQ, 4 bits)"),
        ("math-7b+skywork-1.5b", "rtx4080", "qwen3-4b+skywork-1.5b"),
        (SMALL, 6 * GIB, "no pair of models.toml fits but `bundled`;"),
        ("bundled", GIB, "no pair of models.toml fits; end other programs"),
    ],
    ids=["the same models, quantized", "a quantized checkpoint", "the nearest", "bundled", "none"],
)
def test_what_would_fit_is_named(config: Config, name: str, gpu: str | int, hint: str) -> None:
    if isinstance(gpu, int):
        here = FakeNvml(MemoryInfo=SimpleNamespace(total=gpu, free=gpu))
        found = checks_of(name, None, config, here)["fit"]
    else:
        found = checks_of(name, gpu, config, NONE)["fit"]
    assert found.verdict == BAD
    assert hint in str(found.hint)
    if name == "qwen-7b+prm-7b":
        assert "GiB are missing. Weights take 14.2 GiB + 13.2 GiB" in found.detail


def test_kv_sizes_that_are_larger_than_what_is_left(config: Config) -> None:
    home = {"FLASHEDGE_HOME": str(config.state_dir.parent)}
    sizes = load_config({"kv_bytes": (9 * GIB, GIB)}, home)
    found = checks_of(SMALL, "rtx4080", sizes)["fit"]
    assert found.verdict == WARNING
    assert "are set to 10.0 GiB" in found.detail
    assert "leave kv_bytes unset" in str(found.hint)


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
    place = build_idle_card("card", 24_564 << 20)
    expected = find_need(find_pair(pair, config), config, place).kv_bytes(place)
    assert build_bench(question, config).setup.kv_bytes == expected


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


def test_the_list_of_pairs_that_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    cli: Cli = cli_for(tmp_path, monkeypatch, capfd)

    def list_for(gpu: str) -> dict[str, Any]:
        done = cli("models", "ls", "--fit", "--gpu", gpu, "--json")
        assert done.code == 0
        return {pair["name"]: pair["room"] for pair in json.loads(done.out)}

    small, large = list_for("rtx4080"), list_for("rtx5090")
    assert "qwen-7b-awq+skywork-1.5b" in small
    assert "qwen3-8b+prm-7b-fp8" not in small
    assert small.keys() < large.keys()
    for name, room in small.items():
        assert 0 < room["kv_bytes"] < large[name]["kv_bytes"]
        assert room["paths"] <= large[name]["paths"]
    shown = cli("models", "ls", "--fit", "--gpu", "rtx4080")
    assert "qwen-7b-awq+skywork-1.5b" in shown.out
    assert "GeForce RTX 4080" in shown.err
    assert cli("models", "ls", "--gpu", "rtx4080").code == 2
