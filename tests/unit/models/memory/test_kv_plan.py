"""The memory of a pair: the plan, what each of several cards holds, and `doctor --fit`."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from flashedge.cli.doctor import BAD, GOOD, WARNING, Check
from flashedge.cli.doctor.command import check_kv_memory, check_profile
from flashedge.cli.doctor.fit import check_fit, find_place
from flashedge.config import Config, load_config
from flashedge.errors import CheckpointError, ConfigError, NotFound
from flashedge.models.memory import engine_memory
from flashedge.models.memory.card_memory import RESERVES, CardMemory, build_idle_card
from flashedge.models.memory.engine_memory import EngineMemory, estimate_engine
from flashedge.models.memory.fit import KV_GRANULARITY_BYTES as STEP
from flashedge.models.memory.fit import choose_quantized, find_need, list_fitting, plan_memory
from flashedge.models.registry import find_pair, load_pairs
from scripts.bench.flashtts.shapes import QWEN25_7B
from scripts.lab.benchmark.simulate import Question, build_bench
from tests.support.cli_rig import Cli
from tests.support.fake_nvml import FakeNvml

MIB, GIB = 1 << 20, 1 << 30
CARD = build_idle_card("a card", 24_564 * MIB)
SHAPE = replace(QWEN25_7B, hidden=3584, intermediate=18_944, vocab=152_064)
NONE = FakeNvml(driver=False)
ALONE = "smollm2-135m"
SMALL, MIDDLE, LARGE = "math-1.5b+skywork-1.5b", "math-7b+skywork-1.5b", "math-7b+prm-7b"


def configure(config: Config, **settings: object) -> Config:
    return load_config(settings, {"FLASHEDGE_HOME": str(config.state_dir.parent)})


def fake_free(total: int, free: int, **answers: Any) -> FakeNvml:
    """A card by its GiB."""
    return FakeNvml(MemoryInfo=SimpleNamespace(total=total * GIB, free=free * GIB), **answers)


def card_of(memory_bytes: int) -> CardMemory:
    return CardMemory(
        name="card", memory_bytes=memory_bytes, held_bytes=0, reserve_bytes=0, is_measured=True
    )


def checks_of(name: str, gpu: str | None, config: Config, nvml: object = NONE) -> dict[str, Check]:
    return {check.name: check for check in check_fit(name, gpu, config, nvml)}


def list_names_fitting(place: CardMemory, config: Config) -> set[str]:
    return {pair.name for pair in list_fitting(load_pairs(config).values(), place, config)}


@pytest.mark.parametrize("mib", [9_000, 10_000, 16_376, 24_564, 32_607, 81_920])
def test_everything_planned_fits_the_free_memory(config: Config, mib: int) -> None:
    card = build_idle_card("a card", mib * MIB)
    plan = plan_memory(find_pair(SMALL, config), config, card)
    taken = sum(plan.kv_bytes) + sum(engine.total for engine in plan.need.engines)
    assert card.free_bytes - 2 * STEP <= taken <= card.free_bytes
    least = zip(plan.kv_bytes, plan.need.least_kv_bytes, strict=True)
    assert all(size >= one for size, one in least)


def test_a_card_with_room_for_one_path_each_and_one_that_is_too_small(config: Config) -> None:
    pair = find_pair("qwen-7b+skywork-1.5b", config)
    need = plan_memory(pair, config, CARD).need
    tight = replace(CARD, memory_bytes=need.least_bytes, held_bytes=0, reserve_bytes=0)
    assert plan_memory(pair, config, tight).kv_bytes == need.least_kv_bytes
    with pytest.raises(ConfigError) as e:
        plan_memory(find_pair(LARGE, config), config, CARD)
    for part in ("does not fit a card", "are missing", "14.2 GiB + 13.2 GiB", "estimated"):
        assert part in str(e.value)
    assert "math-7b+skywork-1.5b" in e.value.hint  # keeps the larger model
    assert RESERVES[True] > RESERVES[None] > RESERVES[False] > 0, "a display needs memory too"


def test_a_verifier_holds_no_more_of_a_path_than_it_takes(config: Config) -> None:
    pair, card = find_pair("gpt-oss-20b", config), build_idle_card("card", 24 * GIB)
    need = find_need(pair, config, card)
    each = need.count_path_bytes(0, 16_384) + need.count_path_bytes(1, 4096)
    assert need.count_paths(card, 16_384) == need.sum_rooms(card) // each


def test_sizes_that_are_set_are_respected(config: Config) -> None:
    both = configure(config, kv_bytes=(300 * MIB, 200 * MIB))
    assert plan_memory(find_pair(LARGE, both), both, CARD).kv_bytes == (300 * MIB, 200 * MIB)
    one, large = (configure(config, kv_bytes=b) for b in ((None, 1000 * MIB), (18 * GIB, None)))
    pair = find_pair(SMALL, one)
    rest = plan_memory(pair, config, CARD).need.sum_rooms(CARD) - 1000 * MIB
    assert plan_memory(pair, one, CARD).kv_bytes == (rest // STEP * STEP, 1000 * MIB)
    with pytest.raises(ConfigError, match="fits a card, but not with kv_bytes as set") as e:
        plan_memory(pair, large, CARD)
    assert e.value.hint == "lower kv_bytes, or leave it unset"
    found = checks_of(SMALL, "rtx4080", configure(config, kv_bytes=(9 * GIB, GIB)))["fit"]
    assert (found.verdict, "are set to 10.0 GiB" in found.detail) == (WARNING, True)
    assert "leave kv_bytes unset" in str(found.hint)
    room = find_need(pair, config, find_place("rtx4080", config)).sum_rooms(
        find_place("rtx4080", config)
    )
    full = configure(config, kv_bytes=(room - MIB, None))
    assert checks_of(SMALL, "rtx4080", full)["fit"].verdict == WARNING, "none is left for the other"


def test_an_eighth_of_the_ram_is_planned_and_counted(config: Config) -> None:
    """The plan, `doctor` and the number of paths agree. A size that is set may be larger."""
    ram, pair = replace(card_of(64 * GIB), is_card=False), find_pair(ALONE, config)
    plan = plan_memory(pair, config, ram)
    assert plan.need.sum_rooms(ram) == sum(plan.kv_bytes) == 8 * GIB
    held = 8 * GIB // plan.need.count_path_bytes(0, pair.max_path_tokens)
    assert plan.need.count_paths(ram, pair.max_path_tokens) == held
    larger = configure(config, kv_bytes=(20 * GIB, None))
    assert plan_memory(pair, larger, ram).kv_bytes == (20 * GIB, 0)
    other = plan_memory(find_pair(SMALL, config), larger, ram)
    assert other.kv_bytes == (20 * GIB, 8 * GIB)


def test_doctor_names_no_verifier_where_there_is_none(config: Config) -> None:
    found = checks_of(ALONE, "rtx4090", config)
    assert found["fit"].verdict == GOOD
    assert not any("verifier" in found[name].detail for name in ("weights", "engines"))
    alone = configure(config, pair=ALONE)
    assert check_profile(alone) == "none: a pair without a verifier is scheduled by estimates"
    assert "no verifier to share" in check_kv_memory(alone)


def test_what_was_measured_replaces_the_estimate(config: Config) -> None:
    parts = {"forward": 300 * MIB, "logits": 0, "logprobs": 0, "noise": 0, "graphs": 0}
    measured = EngineMemory(weights=3 << 30, context=900 * MIB, is_estimate=False, **parts)
    plan = plan_memory(find_pair(SMALL, config), config, CARD, {128: (measured, measured)}.get)
    assert not plan.need.is_estimate
    assert measured.overhead == 1200 * MIB, "a measurement gets no margin"
    room = CARD.free_bytes - 2 * (3072 + 1200) * MIB
    assert room - 2 * STEP <= sum(plan.kv_bytes) <= room


def test_the_parts_of_an_estimate() -> None:
    for sequences in (128, 256):
        found = estimate_engine(SHAPE, sequences, samples=True, on_card=True)
        assert found.logits == sequences * 152_064 * 6
        assert found.logprobs == sequences * 152_064 * 4
        assert found.sampler == found.logits + found.logprobs + found.noise
        assert found.forward == 4096 * 2 * (3 * 18_944 + 5 * 3584)
        assert found.overhead > 1.2 * 2**30
    assert estimate_engine(SHAPE, 128, samples=False, on_card=True).sampler == 0
    one, two = (
        estimate_engine(SHAPE, 128, samples=True, on_card=True, cards=cards) for cards in (1, 2)
    )
    assert two.forward == 4096 * 2 * (3 * 18_944 // 2 + 5 * 3584), "it shrinks with the width"
    assert (two.logits, two.noise) == (one.logits, one.noise)
    assert two.context - one.context == engine_memory.LINK_BYTES


def test_heads_are_divided_scarce_kv_heads_copied_and_other_numbers_refused() -> None:
    whole, count_path = SHAPE.kv_bytes_per_token, engine_memory.count_path_bytes
    assert [count_path(SHAPE, n, 1) for n in (1, 2, 4)] == [whole, whole // 2, whole // 4]
    wide = replace(SHAPE, heads=32, kv_heads=4)
    assert count_path(wide, 8, 1) == whole // 4
    head = 2 * 28 * 3584 * 128 * 2
    each = engine_memory.count_weights_bytes(wide, 8)
    assert each == round(wide.weights_bytes / 8 + head / 2)
    assert engine_memory.count_weights_bytes(SHAPE, 2) * 2 == SHAPE.weights_bytes
    assert [n for n in range(1, 17) if engine_memory.can_spread(SHAPE, n)] == [1, 2, 4]
    engine_memory.check_spread(SHAPE, 4, "generator")
    with pytest.raises(ConfigError, match=r"can't be spread over 3 cards: .* 28 attention") as e:
        engine_memory.check_spread(SHAPE, 3, "generator")
    assert e.value.hint == "give the generator one of these numbers of cards: 1, 2, 4"


def test_the_parts_add_up_and_the_simulation_has_the_same_kv_memory(config: Config) -> None:
    place, pair = card_of(24 * GIB), find_pair(MIDDLE, config)
    need = find_need(pair, config, place)
    assert need.weights == (15_231_233_024, 3_087_431_682)
    assert [need.count_path_bytes(i, 4096) for i in (0, 1)] == [4096 * 57_344, 4096 * 28_672]
    assert need.is_estimate
    left = 24 * GIB - sum(need.weights) - sum(engine.overhead for engine in need.engines)
    assert need.sum_rooms(place) == left
    assert need.count_paths(place, 1000) == left // (1000 * (57_344 + 28_672))
    question = Question(gpu="rtx4090", pair=MIDDLE, strategy="beam", n=4, share=None)
    simulated = build_bench(question, config).setup.kv_bytes
    assert simulated == find_need(pair, config, CARD).sum_rooms(CARD)


def test_one_byte_too_few_and_fewer_sequences_where_the_pair_fits_only_so(config: Config) -> None:
    pair = find_pair(SMALL, config)
    least = find_need(pair, config, card_of(0)).least_bytes  # with the fewest sequences
    for place, fits in ((card_of(least), True), (card_of(least - 1), False)):
        assert find_need(pair, config, place).fits(place) is fits
        assert (SMALL in list_names_fitting(place, config)) is fits
    pair = find_pair("qwen-7b+skywork-1.5b", config)
    ample = find_need(pair, config, card_of(24 * GIB))
    tight = card_of(ample.least_bytes - 1)
    fixed = configure(config, max_num_seqs=128)
    fewer, same = (find_need(pair, settings, tight) for settings in (config, fixed))
    assert (ample.sequences, fewer.sequences, same.sequences) == (128, 64, 128)
    assert (fewer.fits(tight), same.fits(tight)) == (True, False)


def test_as_few_and_as_large_quantized_checkpoints_as_needed(config: Config) -> None:
    pair = find_pair("qwen-7b+skywork-1.5b", config)
    for memory, method in ((16 * GIB, "GPTQ, 8 bits"), (12 * GIB, "AWQ, 4 bits")):
        place = card_of(memory)
        found = choose_quantized(pair, find_need(pair, config, place), place)
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
    assert SMALL in list_names_fitting(place, config)


def test_an_idle_card_and_what_other_programs_hold_of_it(config: Config) -> None:
    found = checks_of(SMALL, "RTX 4090", config)
    assert found["fit"].verdict == GOOD
    assert "paths of 3,072 tokens that share nothing" in found["fit"].detail
    assert "kept by the driver of an idle card" in found["memory"].detail
    for said in ("estimated, 10% added", "128 sequences a step"):
        assert said in found["engines"].detail
    programs = [SimpleNamespace(pid=1 << 30, usedGpuMemory=5 * GIB)]
    busy = fake_free(24, 19, ComputeRunningProcesses=programs)
    told = "other programs hold memory: a program (process 1073741824) 5.0 GiB"
    for gpu in (None, "rtx4090"):
        found = checks_of(MIDDLE, gpu, config, busy)
        assert (found["fit"].verdict, told in found["fit"].detail) == (BAD, True)
        for said in ("5.0 GiB of it in use now", told):
            assert said in found["memory"].detail
    other = checks_of(MIDDLE, "rtx3090", config, busy)
    assert other["fit"].verdict != BAD  # a card that is not here is idle
    with pytest.raises(ConfigError, match="other programs hold memory: a program"):
        plan_memory(find_pair(MIDDLE, config), config, find_place(None, config, busy))


@pytest.mark.parametrize(
    ("name", "gpu", "hint"),
    [
        ("qwen-7b+prm-7b", "rtx4090", "flashedge up --pair qwen-7b-awq+prm-7b-fp8"),
        ("qwen-7b+skywork-1.5b", "rtx4080", "flashedge up --pair qwen-7b-awq+skywork-1.5b"),
        (MIDDLE, "rtx4080", "qwen3-4b+skywork-1.5b"),
        (SMALL, 6, "flashedge up --pair qwen-1.5b (these fit too: smollm2-135m)"),
        (SMALL, 2, "flashedge up --pair smollm2-135m"),
        ("bundled", 1, "no pair of models.toml fits; end other programs"),
    ],
)
def test_what_would_fit_is_named(config: Config, name: str, gpu: str | int, hint: str) -> None:
    if isinstance(gpu, int):  # the GiB of the card that is here
        found = checks_of(name, None, config, fake_free(gpu, gpu))["fit"]
    else:
        found = checks_of(name, gpu, config)["fit"]
    assert (found.verdict, hint in str(found.hint)) == (BAD, True)
    if name == "qwen-7b+prm-7b":
        assert "GiB are missing. Weights take 14.2 GiB + 13.2 GiB" in found.detail


def test_the_memory_of_a_card_given_by_it_or_of_the_machine(config: Config) -> None:
    assert "RAM" in checks_of("bundled", None, config)["memory"].detail
    large = checks_of(LARGE, "80GiB", config)
    assert large["fit"].verdict == GOOD
    assert "80.0 GiB" in large["memory"].detail
    assert checks_of(LARGE, "24 GiB", config)["fit"].verdict == BAD
    for name in ("a100", "4090000"):  # bytes without a unit are a card's name
        problem = f"'{name}' is no card that FlashEdge knows; known: rtx4090"
        with pytest.raises(NotFound, match=problem) as e:
            checks_of(SMALL, name, config)
        assert e.value.hint == "for another card give its memory: --gpu 80GiB"


def test_the_commands(cli: Cli) -> None:
    done = cli.ends(1, "", "doctor", "--fit", "qwen-7b+prm-7b", "--gpu", "rtx4090", "--json")
    assert [c["name"] for c in json.loads(done.out)] == ["memory", "weights", "engines", "fit"]
    cli.ends(0, "", "doctor", "--fit", SMALL, "--gpu", "rtx4090")
    cli.ends(2, "", "doctor", "--gpu", "rtx4090")
    cli.ends(2, "there is no pair", "doctor", "--fit", "nobody")

    def list_for(gpu: str) -> dict[str, Any]:
        listed = cli.ends(0, "", "models", "ls", "--fit", "--gpu", gpu, "--json").out
        return {pair["name"]: pair["room"] for pair in json.loads(listed)}

    small, large = list_for("rtx4080"), list_for("rtx5090")
    assert "qwen-7b-awq+skywork-1.5b" in small
    assert "qwen3-8b+skywork-1.5b" not in small
    assert small.keys() < large.keys()
    for name, room in small.items():
        assert 0 < room["kv_bytes"] < large[name]["kv_bytes"]
        assert room["paths"] <= large[name]["paths"]
    shown = cli.ends(0, "GeForce RTX 4080", "models", "ls", "--fit", "--gpu", "rtx4080")
    assert "qwen-7b-awq+skywork-1.5b" in shown.out
    cli.ends(2, "", "models", "ls", "--gpu", "rtx4080")
