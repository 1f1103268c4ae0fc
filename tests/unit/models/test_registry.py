"""models.toml, as shipped and as users write it; memory plans; folders of models."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashedge.config import Config, load_config
from flashedge.errors import CheckpointError, ConfigError, NotFound
from flashedge.models.folders import hub_folder, locate_model, resolve_model
from flashedge.models.memory.card_memory import build_idle_card
from flashedge.models.memory.fit import find_need
from flashedge.models.registry import find_pair, load_pairs, parse_pairs
from flashedge.models.specs import ModelSpec, Pair
from tests.support.tiny_models import write_hub_model, write_model

CARDS_MIB = (16_376, 24_564, 32_607)
"""What a 4080, a 4090 and a 5090 report."""


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


def qwen3(hidden: int, layers: int, ffn: int, tied: bool) -> int:
    """Parameters of a Qwen3 model: 32 heads of 128, 8 of keys and values, each head normalized."""
    attention = 2 * hidden * 4096 + 2 * hidden * 1024 + 2 * 128
    layer = attention + 3 * hidden * ffn + 2 * hidden
    return layers * layer + hidden + 151936 * hidden * (1 if tied else 2)


def qwen3_reward(hidden: int, heads: int, layers: int, ffn: int) -> int:
    """Parameters of a Qwen3 classifier: no lm_head, one score."""
    attention = 2 * hidden * heads * 128 + 2 * hidden * 1024 + 2 * 128
    layer = attention + 3 * hidden * ffn + 2 * hidden
    return layers * layer + hidden + 151936 * hidden + hidden


def phi4_mini() -> int:
    """Parameters of Phi-4-mini: 24 heads of 128, 8 of keys and values, tied embeddings."""
    layer = 2 * 3072 * 3072 + 2 * 3072 * 1024 + 3 * 3072 * 8192 + 2 * 3072
    return 32 * layer + 3072 + 200064 * 3072


SMALL = qwen2(1536, 28, 2, 8960, 151936, tied=True)
LARGE = qwen2(3584, 28, 4, 18944, 152064, tied=False)
QWEN3_4B = qwen3(2560, 36, 9728, tied=True)
QWEN3_8B = qwen3(4096, 36, 12288, tied=False)
LINEAR = {  # weights in the matrices of the layers, which quantization makes smaller
    "1.5B": 28 * (2 * 1536 * 1536 + 2 * 1536 * 256 + 3 * 1536 * 8960),
    "7B": 28 * (2 * 3584 * 3584 + 2 * 3584 * 512 + 3 * 3584 * 18944),
    "4B": 36 * (2 * 2560 * 4096 + 2 * 2560 * 1024 + 3 * 2560 * 9728),
    "8B": 36 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 12288),
    "mini": 32 * (2 * 3072 * 3072 + 2 * 3072 * 1024 + 3 * 3072 * 8192),
}
PARAMETERS = {
    "Qwen/Qwen2.5-Math-1.5B-Instruct": SMALL,
    "Qwen/Qwen2.5-1.5B-Instruct": SMALL,
    "Qwen/Qwen2.5-Math-7B-Instruct": LARGE,
    "Qwen/Qwen2.5-7B-Instruct": LARGE,
    "Skywork/Skywork-o1-Open-PRM-Qwen-2.5-1.5B": SMALL + 1536 + 1,  # + value head
    "peiyi9979/math-shepherd-mistral-7b-prm": mistral(4096, 32, 8, 14336, 32000),
    "Qwen/Qwen2.5-7B-Instruct-AWQ": LARGE,
    "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8": LARGE,
    "Qwen/Qwen3-4B": QWEN3_4B,
    "Qwen/Qwen3-8B": QWEN3_8B,
    "Qwen/Qwen3-8B-AWQ": QWEN3_8B,
    "Qwen/Qwen3-8B-FP8": QWEN3_8B,
    "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B": QWEN3_8B,
    "microsoft/Phi-4-mini-reasoning": phi4_mini(),
    "UW-Madison-Lee-Lab/Llama-PRM800K": mistral(4096, 32, 8, 14336, 128256),
    "Skywork/Skywork-Reward-V2-Qwen3-0.6B": qwen3_reward(1024, 16, 28, 3072),
    "Skywork/Skywork-Reward-V2-Qwen3-1.7B": qwen3_reward(2048, 16, 28, 6144),
    "Skywork/Skywork-Reward-V2-Qwen3-4B": qwen3_reward(2560, 32, 36, 9728),
    # no lm_head; a score head of two layers instead
    "Gen-Verse/ReasonFlux-PRM-7B": LARGE - 152064 * 3584 + (3584 + 1) * 3584 + (3584 + 1) * 2,
    "Qwen/Qwen2.5-Math-PRM-7B": LARGE - 152064 * 3584 + (3584 + 1) * 3584 + (3584 + 1) * 2,
}
KV_BYTES_A_TOKEN = {  # 2 bytes of a key and a value, in each layer, of each head of keys
    "1.5B": 2 * 28 * 2 * 128 * 2,
    "7B": 2 * 28 * 4 * 128 * 2,
    "mistral": 2 * 32 * 8 * 128 * 2,
    "Llama": 2 * 32 * 8 * 128 * 2,
    "0.6B": 2 * 28 * 8 * 128 * 2,
    "1.7B": 2 * 28 * 8 * 128 * 2,
    "4B": 2 * 36 * 8 * 128 * 2,
    "8B": 2 * 36 * 8 * 128 * 2,
    "mini": 2 * 32 * 8 * 128 * 2,
}


def papers_pairs(config: Config) -> list[Pair]:
    return [p for p in load_pairs(config).values() if p.name != "bundled"]


def list_specs(config: Config) -> list[ModelSpec]:
    return [spec for p in papers_pairs(config) for spec in (p.generator, p.verifier)]


def name_size(source: str) -> str:
    sizes = ("mistral", "Llama", "0.6B", "1.5B", "1.7B", "mini", "4B", "8B", "7B")
    return next(s for s in sizes if s in source)


def count_bytes(spec: ModelSpec) -> int:
    """Bytes of a model's weights by its architecture and the format of its checkpoint.

    AWQ and GPTQ: for 128 weights of a matrix a scale of 16 bits and a zero point. FP8 checkpoints:
    a scale of 4 bytes for each block of 128 x 128. The rest has 2 bytes a number.
    """
    total, linear = PARAMETERS[spec.source], LINEAR.get(name_size(spec.source), 0)
    for name, bits in (("-AWQ", 4), ("-GPTQ-Int8", 8)):
        if name in spec.source:
            return 2 * (total - linear) + linear * (128 * bits + 16 + bits) // (8 * 128)
    if "-FP8" in spec.source:
        return 2 * (total - linear) + linear + 4 * linear // 128**2
    return 2 * total - (linear if spec.quantization else 0)


def test_the_formulas_give_the_counts_of_the_model_cards() -> None:
    assert SMALL == 1_543_714_304
    assert LARGE == 7_615_616_512
    assert QWEN3_4B == 4_022_468_096
    assert QWEN3_8B == 8_190_735_360
    assert phi4_mini() == 3_836_021_760
    assert PARAMETERS["peiyi9979/math-shepherd-mistral-7b-prm"] == 7_241_732_096


def test_shipped_models_weigh_what_their_architectures_imply(config: Config) -> None:
    specs = list_specs(config)
    assert {spec.source for spec in specs} == PARAMETERS.keys()
    for spec in specs:
        is_packed = "AWQ" in spec.source or "GPTQ" in spec.source
        assert spec.dtype == ("float16" if is_packed else "bfloat16")
        assert spec.weights_bytes == count_bytes(spec), spec.source
        is_quantized = is_packed or "FP8" in spec.source or spec.quantization is not None
        assert spec.parameters == (PARAMETERS[spec.source] if is_quantized else None), spec.source
        assert spec.revision


def test_shipped_architectures_have_the_kv_size_that_the_plans_assume(config: Config) -> None:
    for spec in list_specs(config):
        shape = spec.architecture
        assert shape is not None, spec.source
        kv_bytes = 2 * shape.layers * shape.kv_heads * shape.head_dim * 2
        assert kv_bytes == KV_BYTES_A_TOKEN[name_size(spec.source)], spec.source


def test_quantized_checkpoints_have_the_size_that_their_format_implies(config: Config) -> None:
    listed = {spec.source: spec.quantized for spec in list_specs(config) if spec.quantized}
    assert set(listed) == {f"Qwen/Qwen2.5-{size}-Instruct" for size in ("1.5B", "7B")}
    for source, found in listed.items():
        weights = LINEAR[name_size(source)]
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


def test_the_cards_that_the_pairs_fit(config: Config) -> None:
    """Each of its pairs fits a card that is sold, but for a few of two 7B models."""
    pairs = papers_pairs(config)
    fitting = [
        {p.name for p in pairs if find_need(p, config, card).fits(card)}
        for card in (build_idle_card("card", mib << 20) for mib in CARDS_MIB)
    ]
    assert fitting[0] < fitting[1] < fitting[2]
    assert {p.name for p in pairs} - fitting[1] == {
        "qwen3-8b+prm-7b-fp8",
        "qwen-7b+reward-4b",
        "r1-qwen3-8b+skywork-1.5b",
        *(f"{g}-7b+{v}" for g in ("math", "qwen") for v in ("shepherd-7b", "prm-7b")),
    }
    small = {"qwen-7b-awq+skywork-1.5b", "qwen3-4b+skywork-1.5b", "qwen-1.5b+reward-1.7b"}
    assert small < fitting[0]
    assert "qwen-7b+reward-4b" in fitting[2]


def test_shipped_architectures_give_the_widths_of_a_step(config: Config) -> None:
    """Without them the estimate takes those of a much larger model."""
    for pair in papers_pairs(config):
        for shape in (pair.generator.architecture, pair.verifier.architecture):
            assert shape is not None
            assert shape.hidden
            assert shape.intermediate
            assert shape.vocab
        assert pair.memory is None, "its KV is planned from the free memory"
        assert pair.max_path_tokens < pair.generator.max_model_len, pair.name


def test_a_verifier_says_what_it_judges(config: Config) -> None:
    judges = {p.name: p.verifier.judges for p in load_pairs(config).values()}
    assert judges["bundled"] == judges["qwen-1.5b+reasonflux-7b"] == "steps"
    assert judges["qwen-7b+reward-0.6b"] == judges["qwen-1.5b+yes-no-7b"] == "answers"


def test_pairs_that_think_have_room_for_it(config: Config) -> None:
    """16k tokens of thinking do not fit a verifier, so it sees the answer alone."""
    thinking = [p for p in papers_pairs(config) if p.judge == "answer"]
    assert len(thinking) == 5
    for pair in thinking:
        assert pair.generator.thinking
        assert pair.max_path_tokens >= 16_384 > pair.verifier.max_model_len
        assert pair.generator.max_model_len >= pair.max_path_tokens + 4096
    for pair in papers_pairs(config):
        switch = pair.generator.chat_template_kwargs.get("enable_thinking", True)
        is_thinking = pair.generator.thinking and switch
        assert is_thinking == (pair.judge == "answer"), pair.name


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
memory = { generator_kv_bytes = "1GiB", verifier_kv_bytes = "512MiB" }
sampling = { temperature = 1 }
max_step_tokens = 100
max_path_tokens = 1000
options.mcts = { c = 0.5 }
"""


def test_a_users_pair_is_found_beside_the_packages(config: Config) -> None:
    users_file(config, MINE)
    pair = find_pair("mine", config)
    assert pair.memory is not None
    assert pair.memory.generator_kv_bytes == 1 << 30
    assert pair.sampling.temperature == 1.0
    assert pair.verifier.tokens == ("ки", "+", "-")
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
        ('step_token = "ки"', 'score_at = "after"', "score_at is 'after'", None),
        ("max_step_tokens = 100\n", "", "max_step_tokens is missing", None),
        ("max_step_tokens = 100", "max_step_tokens = 0", "must be at least 1", None),
        ("max_step_tokens = 100", "max_step_tokens = true", "must be an integer", None),
        ('"1GiB"', '"1GB"', 'must be a size such as "512MiB"', None),
        ("[pairs.mine]", '[pairs."mi:ne"]', "can't hold ':'", None),
        ('description = "mine"', "description = 3", "must be a string", None),
        ("sampling = {", "sampling = 3 #", "must be a table", None),
        ('family = "step_tag"', 'family = "step_tag"\nquantization = "fp8"', "per_tensor", None),
        (
            'family = "step_tag"',
            'family = "step_tag"\nchat_template_kwargs = { tokenize = true }',
            "can't set 'tokenize'",
            None,
        ),
        (
            'family = "step_tag"',
            'family = "step_tag"\nchat_template_kwargs = true',
            "must be a table",
            None,
        ),
        ("options.mcts = {", "options.mcts = 3 #", "options.mcts must be a table", None),
        (
            "max_step_tokens = 100",
            "max_step_tokens = 100\nstep_entropy = 3.5",
            r"in \[0, 3\]",
            None,
        ),
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


# ---------------------------------------------------------------- read again when changed


def count_parses() -> int:
    return parse_pairs.cache_info().misses


def test_the_files_are_parsed_once_for_all_who_ask(config: Config) -> None:
    load_pairs(config)
    before = count_parses()
    assert load_pairs(config) is load_pairs(config)
    find_pair("bundled", config)
    assert count_parses() == before


def test_a_changed_file_is_read_again_and_a_removed_one_forgotten(config: Config) -> None:
    one = """
[pairs.mine]
generator = "bundled"
verifier = "bundled"
description = "x"
max_step_tokens = 5
max_path_tokens = 10
"""
    shipped = dict(load_pairs(config))
    users_file(config, one)
    assert load_pairs(config)["mine"].max_path_tokens == 10
    users_file(config, one.replace("10", "20"))  # of the same size
    assert load_pairs(config)["mine"].max_path_tokens == 20
    users_file(config, "[pairs.mine")
    for _ in range(2):
        with pytest.raises(ConfigError, match="not valid TOML"):
            load_pairs(config)
    (config.config_dir / "models.toml").unlink()
    assert dict(load_pairs(config)) == shipped
