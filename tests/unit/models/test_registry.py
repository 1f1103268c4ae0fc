"""models.toml, as shipped and as users write it; memory plans; folders of models."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashedge.config import Config, load_config
from flashedge.errors import CheckpointError, ConfigError, NotFound
from flashedge.models.folders import hub_folder, locate_model, resolve_model
from flashedge.models.registry import find_pair, load_pairs
from flashedge.models.specs import ENGINE_OVERHEAD_BYTES, RESERVED_BYTES, Pair
from tests.support.tiny_models import write_hub_model, write_model

CARD_BYTES = 24_564 << 20


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    return load_config({}, {"FLASHEDGE_HOME": str(tmp_path / "home")})


def users_file(config: Config, text: str) -> None:
    config.config_dir.mkdir(parents=True, exist_ok=True)
    (config.config_dir / "models.toml").write_text(text)


# ---------------------------------------------------------------- as shipped


def qwen2(hidden: int, layers: int, kv: int, ffn: int, vocab: int, tied: bool) -> int:
    """Parameters of a Qwen2 model: biases on q, k, v; two norms a layer; head_dim 128."""
    width = kv * 128
    attention = 2 * hidden * hidden + hidden + 2 * (hidden * width + width)
    layer = attention + 3 * hidden * ffn + 2 * hidden
    return layers * layer + hidden + vocab * hidden * (1 if tied else 2)


def mistral(hidden: int, layers: int, kv: int, ffn: int, vocab: int) -> int:
    attention = 2 * hidden * hidden + 2 * hidden * kv * 128
    layer = attention + 3 * hidden * ffn + 2 * hidden
    return layers * layer + hidden + 2 * vocab * hidden


SMALL = qwen2(1536, 28, 2, 8960, 151936, tied=True)
LARGE = qwen2(3584, 28, 4, 18944, 152064, tied=False)
PARAMETERS = {
    "Qwen/Qwen2.5-Math-1.5B-Instruct": SMALL,
    "Qwen/Qwen2.5-1.5B-Instruct": SMALL,
    "Qwen/Qwen2.5-Math-7B-Instruct": LARGE,
    "Qwen/Qwen2.5-7B-Instruct": LARGE,
    "Skywork/Skywork-o1-Open-PRM-Qwen-2.5-1.5B": SMALL + 1536 + 1,  # + value head
    "peiyi9979/math-shepherd-mistral-7b-prm": mistral(4096, 32, 8, 14336, 32000),
    # no lm_head; a score head of two layers instead
    "Qwen/Qwen2.5-Math-PRM-7B": LARGE - 152064 * 3584 + (3584 + 1) * 3584 + (3584 + 1) * 2,
}
KV_BYTES_A_TOKEN = {"1.5B": 2 * 28 * 2 * 128 * 2, "7B": 2 * 28 * 4 * 128 * 2}


def papers_pairs(config: Config) -> list[Pair]:
    return [p for p in load_pairs(config).values() if p.name != "bundled"]


def test_the_formulas_give_the_counts_of_the_model_cards() -> None:
    assert SMALL == 1_543_714_304
    assert LARGE == 7_615_616_512
    assert PARAMETERS["peiyi9979/math-shepherd-mistral-7b-prm"] == 7_241_732_096


def test_shipped_models_weigh_what_their_architectures_imply(config: Config) -> None:
    specs = {s.source: s for p in papers_pairs(config) for s in (p.generator, p.verifier)}
    assert specs.keys() == PARAMETERS.keys()
    for source, spec in specs.items():
        assert spec.dtype == "bfloat16"
        assert spec.weights_bytes == 2 * PARAMETERS[source], source
        assert spec.revision


def test_shipped_architectures_have_the_kv_size_that_the_plans_assume(config: Config) -> None:
    specs = {s.source: s for p in papers_pairs(config) for s in (p.generator, p.verifier)}
    for source, spec in specs.items():
        shape = spec.architecture
        assert shape is not None, source
        kv_bytes = 2 * shape.layers * shape.kv_heads * shape.head_dim * 2
        size = "1.5B" if "1.5" in source.rpartition("Qwen")[2] else "7B"
        expected = 131_072 if "mistral" in source else KV_BYTES_A_TOKEN[size]
        assert kv_bytes == expected, source


def test_quantized_checkpoints_have_the_size_that_their_format_implies(config: Config) -> None:
    """Linear layers in groups of 128: a scale of 16 bits and a zero point each; the rest as is."""
    linear = {
        "1.5B": 28 * (2 * 1536 * 1536 + 2 * 1536 * 256 + 3 * 1536 * 8960),
        "7B": 28 * (2 * 3584 * 3584 + 2 * 3584 * 512 + 3 * 3584 * 18944),
    }
    specs = {p.generator.source: p.generator for p in papers_pairs(config)}
    listed = {source: spec.quantized for source, spec in specs.items() if spec.quantized}
    assert set(listed) == {f"Qwen/Qwen2.5-{size}-Instruct" for size in linear}
    for source, found in listed.items():
        weights = linear["7B" if "7B" in source else "1.5B"]
        rest = 2 * (PARAMETERS[source] - weights)
        assert [q.source.rpartition("Instruct-")[2] for q in found] == ["GPTQ-Int8", "AWQ"]
        for bits, q in zip((8, 4), found, strict=True):
            group = 128 * bits + 16 + bits
            assert q.weights_bytes == rest + weights * group // (8 * 128), q.source


def test_an_incomplete_architecture_is_refused(config: Config) -> None:
    users_file(
        config,
        '[generators.g]\nsource = "a/b"\ndtype = "bfloat16"\nmax_model_len = 8\n'
        "architecture = { layers = 2, heads = 2 }\n",
    )
    with pytest.raises(ConfigError, match=r"architecture: kv_heads is missing"):
        load_pairs(config)


def test_each_plan_fits_24_gb_or_is_marked(config: Config) -> None:
    for pair in papers_pairs(config):
        memory = pair.memory
        assert memory.total_bytes == CARD_BYTES
        needed = pair.needed_bytes
        assert needed is not None
        assert memory.fits is (needed <= CARD_BYTES), pair.name
        weights = (pair.generator.weights_bytes or 0) + (pair.verifier.weights_bytes or 0)
        kv = memory.generator_kv_bytes + memory.verifier_kv_bytes
        assert needed == weights + kv + 2 * ENGINE_OVERHEAD_BYTES + RESERVED_BYTES
    assert {p.name for p in papers_pairs(config) if not p.memory.fits} == {
        f"{g}-7b+{v}" for g in ("math", "qwen") for v in ("shepherd-7b", "prm-7b")
    }


def test_each_plan_holds_a_whole_path(config: Config) -> None:
    for pair in papers_pairs(config):
        size = "7B" if "7B" in pair.generator.source else "1.5B"
        path_bytes = pair.generator.max_model_len * KV_BYTES_A_TOKEN[size]
        assert pair.memory.generator_kv_bytes > path_bytes, pair.name


def test_the_bundled_pair_is_found(config: Config) -> None:
    pair = find_pair("bundled", config)
    assert pair.generator.source.endswith("flashedge/bundled/generator")
    assert pair.verifier.family == "qwen_prm"
    assert pair.verifier.options == {"step_token": "<extra_0>"}
    assert pair.max_path_tokens < pair.generator.max_model_len
    assert str(pair.options["probed_cot"]["suffix"]).endswith("boxed{")


def test_unknown_pair_names_the_nearest(config: Config) -> None:
    with pytest.raises(NotFound) as e:
        find_pair("bundeld", config)
    assert e.value.hint == "did you mean 'bundled'?"


# ---------------------------------------------------------------- the user's file

MINE = """
[generators.mine]
source = "/models/g"
dtype = "bfloat16"
max_model_len = 2048
[verifiers.mine]
source = "/models/v"
dtype = "bfloat16"
max_model_len = 2048
family = "step_tag"
step_token = "ки"
good_token = "+"
bad_token = "-"
[pairs.mine]
description = "mine"
generator = "mine"
verifier = "mine"
memory = { generator_kv_bytes = "1GiB", verifier_kv_bytes = "512MiB", total_bytes = 8000000000 }
sampling = { temperature = 1 }
max_step_tokens = 100
max_path_tokens = 1000
options.mcts = { c = 0.5 }
"""


def test_a_users_pair_is_found_beside_the_packages(config: Config) -> None:
    users_file(config, MINE)
    pair = find_pair("mine", config)
    assert pair.memory.generator_kv_bytes == 1 << 30
    assert pair.sampling.temperature == 1.0
    assert pair.verifier.tokens == ("ки", "+", "-")
    assert pair.needed_bytes is None
    assert pair.options == {"mcts": {"c": 0.5}}
    assert "bundled" in load_pairs(config)


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        (
            "max_model_len = 2048",
            "max_model_lne = 2048",
            "unknown key 'max_model_lne'",
            "max_model_len",
        ),
        ("[pairs.mine]", "[pears.mine]", "unknown key 'pears'", "pairs"),
        ("temperature = 1", "temperatur = 1", "unknown key 'temperatur'", "temperature"),
        ('generator = "mine"', 'generator = "mien"', "unknown key 'mien'", "mine"),
        ('dtype = "bfloat16"', 'dtype = "fp8"', "dtype is 'fp8'", None),
        ('family = "step_tag"', 'family = "step"', "family is 'step'", None),
        ('family = "step_tag"\n', "", "family is missing", None),
        ("max_step_tokens = 100\n", "", "max_step_tokens is missing", None),
        ("max_step_tokens = 100", "max_step_tokens = 0", "must be at least 1", None),
        ("max_step_tokens = 100", "max_step_tokens = true", "must be an integer", None),
        ('"1GiB"', '"1GB"', 'must be a size such as "512MiB"', None),
        ("[pairs.mine]", '[pairs."mi:ne"]', "can't hold ':'", None),
        ('description = "mine"', "description = 3", "must be a string", None),
        ("sampling = {", "sampling = 3 #", "must be a table", None),
        ("options.mcts = {", "options.mcts = 3 #", "options.mcts must be a table", None),
    ],
)
def test_a_mistake_is_named(
    config: Config, old: str, new: str, message: str, hint: str | None
) -> None:
    assert old in MINE
    users_file(config, MINE.replace(old, new, 1))
    with pytest.raises(ConfigError, match=message) as e:
        load_pairs(config)
    assert "models.toml" in str(e.value)
    if hint:
        assert hint in (e.value.hint or "")


# ---------------------------------------------------------------- folders


def test_a_missing_model_names_the_command_that_pulls_it(config: Config) -> None:
    spec = find_pair("qwen-1.5b+skywork-1.5b", config).generator
    with pytest.raises(CheckpointError, match="not on this machine") as e:
        resolve_model(spec, config)
    assert e.value.hint == "flashedge models pull Qwen/Qwen2.5-1.5B-Instruct"


@pytest.mark.parametrize("place", ["own", "users"])
def test_a_model_in_a_hub_cache_is_found(config: Config, tmp_path: Path, place: str) -> None:
    spec = find_pair("qwen-1.5b+skywork-1.5b", config).generator
    hub = hub_folder(config) if place == "own" else tmp_path / "hf" / "hub"
    assert spec.revision is not None
    made = write_hub_model(hub, spec.source, spec.revision, "Qwen2ForCausalLM")
    assert resolve_model(spec, config) == made


def test_another_revision_does_not_count(config: Config) -> None:
    spec = find_pair("qwen-1.5b+skywork-1.5b", config).generator
    write_hub_model(hub_folder(config), spec.source, "0" * 40, "Qwen2ForCausalLM")
    assert locate_model(spec, config) is None


def test_the_revision_main_is_the_one_of_the_cache(config: Config) -> None:
    spec = find_pair("qwen-1.5b+skywork-1.5b", config).verifier
    assert spec.revision == "main"
    made = write_hub_model(hub_folder(config), spec.source, "1" * 40, "Qwen2ForPrmModel")
    assert resolve_model(spec, config) == made


def test_a_model_in_a_folder_is_found(config: Config, tmp_path: Path) -> None:
    users_file(config, MINE.replace("/models", str(tmp_path)))
    pair = find_pair("mine", config)
    with pytest.raises(CheckpointError, match="no model folder"):
        resolve_model(pair.generator, config)
    write_model(tmp_path / "g")
    write_model(tmp_path / "v", "MistralForCausalLM")
    assert resolve_model(pair.generator, config) == tmp_path / "g"
    assert resolve_model(pair.verifier, config) == tmp_path / "v"
