"""models.toml, as shipped and as users write it; memory plans; folders of models."""

import inspect
import json
import re
from dataclasses import fields, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma4UnifiedTextConfig,
    GptOssConfig,
    PreTrainedTokenizerFast,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3MoeConfig,
)

from flashedge.config import Config
from flashedge.errors import CheckpointError, ConfigError
from flashedge.models.checkpoint_shape import read_shape
from flashedge.models.folders import locate_hub, locate_model, resolve_model
from flashedge.models.memory.card_memory import build_idle_card
from flashedge.models.memory.fit import choose_auto, find_need
from flashedge.models.registry import find_pair, load_pairs, name_pair
from flashedge.models.shape import Architecture
from flashedge.models.specs import RESERVED, ModelSpec, Pair, find_fault
from tests.support.tiny_models import write_hub_model, write_model

CARDS_MIB = (12_288, 16_376, 24_564, 32_607)
"""What a 3060, a 4080, a 4090 and a 5090 report."""


def users_file(config: Config, text: str) -> None:
    config.config_dir.mkdir(parents=True, exist_ok=True)
    (config.config_dir / "models.toml").write_text(text)


def build_configs() -> dict[str, Any]:
    """The text model of each generator that is new in 2026, by its source: the defaults of
    transformers, and what model cards or published copies of config.json say."""
    kv = {"num_attention_heads": 16, "num_key_value_heads": 4}
    gemma = {
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 1,
        "global_head_dim": 512,
        "attention_k_eq_v": True,
    }
    return {
        "Qwen/Qwen3.5-4B": Qwen3_5TextConfig(
            hidden_size=2560, intermediate_size=9216, tie_word_embeddings=True, **kv
        ),
        "Qwen/Qwen3.5-9B": Qwen3_5TextConfig(),
        "Qwen/Qwen3.5-35B-A3B-GPTQ-Int4": Qwen3_5MoeTextConfig(),
        "Qwen/Qwen3-30B-A3B-GPTQ-Int4": Qwen3MoeConfig(num_hidden_layers=48, head_dim=128),
        "openai/gpt-oss-20b": GptOssConfig(num_hidden_layers=24, num_local_experts=32),
        "google/gemma-4-12B-it-qat-w4a16-ct": Gemma4UnifiedTextConfig(
            hidden_size=3840, num_hidden_layers=48, intermediate_size=15360, **kv | gemma
        ),
    }


PACKED = {
    "Qwen/Qwen3.5-4B": (r"layers.*weight", 8),
    "Qwen/Qwen3.5-9B": (r"layers.*weight", 8),
    "Qwen/Qwen3.5-35B-A3B-GPTQ-Int4": (r"mlp\.experts\.", 4 + 20 / 128),
    "Qwen/Qwen3-30B-A3B-GPTQ-Int4": (r"layers.*(experts\.|self_attn.*weight)", 4 + 20 / 128),
    "openai/gpt-oss-20b": (r"experts\..*proj$", 4 + 8 / 32),
    "google/gemma-4-12B-it-qat-w4a16-ct": (r"layers.*weight", 4 + 16 / 32),
}
"""Which matrices are packed, and in how many bits a weight, scales included. GPTQ has a scale of 16
bits and a zero point of 4 for 128 weights, MXFP4 a scale of 8 for 32, Gemma 4 one of 16 for 32."""


LOADED = {"google/gemma-4-12B-it-qat-w4a16-ct": round(8.28 * 2**30)}
"""What published logs of vLLM say that loading took."""


def test_new_generators_are_as_their_configurations_say(pairs: list[Pair], tmp_path: Path) -> None:
    configs = build_configs()
    assert configs.keys() == PACKED.keys()
    specs = {spec.source: spec for spec in list_specs(pairs) if spec.source in configs}
    assert specs.keys() == configs.keys()
    for source, config in configs.items():
        spec = specs[source]
        (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
        shape = read_shape(tmp_path, spec)
        told = {f.name: getattr(shape, f.name) for f in fields(Architecture)}
        assert Architecture(**told) == spec.architecture, source
        pattern, bits = PACKED[source]
        with torch.device("meta"):
            weights = dict(AutoModelForCausalLM.from_config(config).named_parameters())
        total = sum(w.numel() for w in weights.values())
        packed = sum(
            w.numel()
            for name, w in weights.items()
            if re.search(pattern, name) and w.ndim == (3 if ".experts." in name else 2)
        )
        assert spec.parameters == total, source
        counted, known = int(packed * bits / 8) + 2 * (total - packed), spec.weights_bytes
        if source in LOADED:
            assert counted < known == LOADED[source], "what sees and hears, and other buffers"
        else:
            assert known == counted, source


TIED = ("2.5-1.5B", "2.5-Math-1.5B", "Qwen3-4B", "Reward-V2", "PRM-7B", "SmolLM2")
"""Models whose output matrix is that of the embedding, or that have none."""


def count(spec: ModelSpec) -> tuple[int, int]:
    """Parameters of a model by its architecture, and those in the matrices of its layers, which
    quantization makes smaller."""
    shape, name = spec.architecture, spec.source
    hidden, kv = shape.hidden, shape.kv_heads * shape.head_dim
    width = shape.heads * shape.head_dim
    matrices = shape.layers * (2 * hidden * (width + kv) + 3 * hidden * shape.intermediate)
    total = matrices + shape.layers * 2 * hidden + hidden
    if "Qwen3" in name:
        total += shape.layers * 2 * shape.head_dim  # norms of q and k
    elif "Qwen" in name or "ReasonFlux" in name:
        total += shape.layers * (width + 2 * kv)  # biases of q, k and v
    total += (1 if any(part in name for part in TIED) else 2) * shape.vocab * hidden
    if "PRM-7B" in name:  # a head of two layers
        total += (hidden + 1) * (hidden + 2)
    elif "Reward-V2" in name:
        total += hidden
    elif "Open-PRM" in name:
        total += hidden + 1
    return total, matrices


@pytest.fixture
def pairs(config: Config) -> list[Pair]:
    """Those of the papers."""
    return [p for p in load_pairs(config).values() if p.name != "bundled"]


def list_specs(pairs: list[Pair]) -> list[ModelSpec]:
    specs = [spec for p in pairs for spec in (p.generator, p.verifier)]
    return [spec for spec in specs if spec.weights_bytes]  # that of no verifier has none


def count_bytes(spec: ModelSpec) -> int:
    """Bytes of a model's weights by its architecture and the format of its checkpoint.

    AWQ and GPTQ: for 128 weights of a matrix a scale of 16 bits and a zero point. FP8 checkpoints:
    a scale of 4 bytes for each block of 128 x 128. The rest has 2 bytes a number.
    """
    total, linear = count(spec)
    for name, bits in (("-AWQ", 4), ("-GPTQ-Int8", 8)):
        if name in spec.source:
            return 2 * (total - linear) + linear * (128 * bits + 16 + bits) // (8 * 128)
    if "-FP8" in spec.source:
        return 2 * (total - linear) + linear + 4 * linear // 128**2
    return 2 * total - (linear if spec.quantization else 0)


def test_shipped_models_weigh_what_their_architectures_and_formats_imply(pairs: list[Pair]) -> None:
    specs = [spec for spec in list_specs(pairs) if spec.source not in PACKED]
    for spec in specs:
        source = spec.source
        is_packed = "AWQ" in source or "GPTQ" in source
        assert spec.dtype == ("float16" if is_packed else "bfloat16")
        assert spec.weights_bytes == count_bytes(spec), source
        is_quantized = is_packed or "FP8" in source or spec.quantization is not None
        assert spec.parameters == (count(spec)[0] if is_quantized else None), source
        assert spec.revision
    cards = {
        "Qwen/Qwen2.5-1.5B-Instruct": 1_543_714_304,
        "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
        "Qwen/Qwen3-4B": 4_022_468_096,
        "Qwen/Qwen3-8B": 8_190_735_360,
        "peiyi9979/math-shepherd-mistral-7b-prm": 7_241_732_096,
    }
    counts = {spec.source: count(spec)[0] for spec in specs if spec.source in cards}
    assert counts == cards, "the formulas give what the model cards say"
    listed = {spec.source: spec for spec in specs if spec.quantized}
    assert set(listed) == {f"Qwen/Qwen2.5-{size}-Instruct" for size in ("1.5B", "7B")}
    for source, spec in listed.items():
        expected = [f"{source}-{name}" for name in ("GPTQ-Int8", "AWQ")]
        assert [q.source for q in spec.quantized] == expected
        for q in spec.quantized:
            assert q.weights_bytes == count_bytes(replace(spec, source=q.source)), q.source


def test_the_cards_that_the_pairs_fit(config: Config, pairs: list[Pair]) -> None:
    fitting = [
        {p.name for p in pairs if find_need(p, config, card).fits(card)}
        for card in (build_idle_card("card", mib << 20) for mib in CARDS_MIB)
    ]
    assert fitting[0] < fitting[1] < fitting[2] < fitting[3]
    assert {p.name for p in pairs} - fitting[2] == {
        "qwen3.5-35b-a3b-gptq+skywork-1.5b",
        *(f"{generator}-7b+prm-7b" for generator in ("math", "qwen")),
    }
    small = {"qwen-7b-awq+skywork-1.5b", "qwen3-4b+skywork-1.5b", "qwen-1.5b+reward-1.7b"}
    assert small < fitting[1]
    assert "qwen3.5-35b-a3b-gptq+skywork-1.5b" in fitting[3]


def test_auto_chooses_the_largest_pair_that_fits(config: Config, pairs: list[Pair]) -> None:
    chosen = [
        choose_auto(pairs, build_idle_card("card", mib << 20), config) for mib in (8192, *CARDS_MIB)
    ]
    small, large = "qwen3.5-4b-fp8+skywork-1.5b", "qwen3-30b-a3b-gptq+skywork-1.5b"
    assert [pair and pair.name for pair in chosen] == [None, small, small, large, large]


def test_parsers_are_those_that_vllm_has(pairs: list[Pair]) -> None:
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    for pair in pairs:
        spec = pair.generator
        if spec.tool_parser is not None:
            assert spec.tool_parser in ToolParserManager.list_registered()
        if spec.reasoning_parser is not None:
            assert spec.reasoning_parser in ReasoningParserManager.list_registered()
        assert spec.reasoning_parser or not spec.thinking


def test_a_pair_is_found_as_ollamas_users_write_it(config: Config) -> None:
    own = "gpt-oss-20b+skywork-1.5b"
    for name in (own, own.upper(), f"{own}:latest", "gpt-oss-20b", "GPT-OSS-20B:latest"):
        assert find_pair(name, config).name == own
        assert name_pair(replace(config, pair=name)).pair == own
    assert list(load_pairs(config)).count(own) == 1
    assert name_pair(replace(config, pair="nobody")).pair == "nobody"


def test_an_own_name_beats_an_alias(config: Config) -> None:
    aliases = 'aliases = ["Bundled", "gpt-oss-20b", "ours"]'
    users_file(config, MINE.replace(STEPS, f"{STEPS}\n{aliases}"))
    names = {"bundled": "bundled", "GPT-OSS-20B": "gpt-oss-20b+skywork-1.5b", "ours": "mine"}
    assert {name: find_pair(name, config).name for name in names} == names
    users_file(config, MINE.replace("[pairs.mine]", '[pairs."gpt-oss-20b"]'))
    assert find_pair("gpt-oss-20b:LATEST", config).generator.source == "/models/g"
    users_file(config, MINE.replace("[pairs.mine]", "[pairs.BUNDLED]"))
    names = {"bundled": "bundled", "BUNDLED": "BUNDLED"}
    assert {name: find_pair(name, config).name for name in names} == names


def test_shipped_pairs_have_room_for_a_prompt_and_thinking_ones_for_that(pairs: list[Pair]) -> None:
    thinking = [p for p in pairs if p.judge == "answer"]
    assert len(thinking) == 3
    for pair in thinking:
        assert pair.max_path_tokens >= 16_384 > pair.verifier.max_model_len
        assert pair.generator.max_model_len >= pair.max_path_tokens + 4096
    for pair in pairs:
        assert pair.memory is None, "its KV is planned from the free memory"
        assert pair.max_path_tokens < pair.generator.max_model_len, pair.name
        switch = pair.generator.chat_template_kwargs.get("enable_thinking", True)
        assert (pair.generator.thinking and switch) == (pair.judge == "answer"), pair.name


def test_the_bundled_pair_is_found(config: Config) -> None:
    pair = find_pair("bundled", config)
    assert pair.generator.source.endswith("flashedge/bundled/generator")
    assert pair.verifier.family == "qwen_prm"
    assert pair.verifier.options == {"step_token": "<extra_0>"}
    assert pair.max_path_tokens < pair.generator.max_model_len
    assert str(pair.options["probed_cot"]["suffix"]).endswith("boxed{")


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
    assert pair.memory.generator_kv_bytes == 1 << 30
    assert pair.sampling.temperature == 1.0
    assert pair.verifier.tokens == ("ки", "+", "-")
    assert pair.options == {"mcts": {"c": 0.5}}
    assert "bundled" in load_pairs(config)


FAMILY, STEPS = 'family = "step_tag"', "max_step_tokens = 100"
MISTAKES = [
    ("max_model_len = 2048", "max_model_lne = 2048", "unknown key 'max_model_lne'"),
    ("[pairs.mine]", "[pears.mine]", "unknown key 'pears'"),
    ("temperature = 1", "temperatur = 1", "unknown key 'temperatur'"),
    ('generator = "mine"', 'generator = "mien"', "unknown key 'mien'"),
    ('generator = "mine"', 'generator = ["mine"]', "unknown key"),
    ('dtype = "bfloat16"', 'dtype = "fp8"', "dtype is 'fp8'"),
    (FAMILY, 'family = "step"', "family is 'step'"),
    (f"{FAMILY}\n", "", "family is missing"),
    ('step_token = "ки"', 'score_at = "after"', "score_at is 'after'"),
    (f"{STEPS}\n", "", "max_step_tokens is missing"),
    (STEPS, "max_step_tokens = 0", "must be at least 1"),
    (STEPS, "max_step_tokens = true", "must be an integer"),
    ('"1GiB"', '"1GB"', 'must be a size such as "512MiB"'),
    ("[pairs.mine]", '[pairs."mi:ne"]', "can't hold ':'"),
    ('description = "mine"', "description = 3", "must be a string"),
    ("sampling = {", "sampling = 3 #", "must be a table"),
    (FAMILY, f'{FAMILY}\nquantization = "fp8"', "per_tensor"),
    (FAMILY, f"{FAMILY}\nchat_template_kwargs = {{ tokenize = true }}", "can't set 'tokenize'"),
    (FAMILY, f"{FAMILY}\nchat_template_kwargs = true", "must be a table"),
    ("options.mcts = {", "options.mcts = 3 #", "options.mcts must be a table"),
    (STEPS, f'{STEPS}\naliases = ["a:b"]', "can't hold ':'"),
    (STEPS, f'{STEPS}\naliases = "a"', "must be a list of strings"),
    (STEPS, f"{STEPS}\nstep_entropy = 3.5", r"in \[0, 3\]"),
    ("temperature = 1", "temperature = -1", r"temperature is -1.0; it must be in \[0, 2\]"),
    ("temperature = 1", "top_p = 0", r"top_p is 0.0; it must be in \(0, 1\]"),
    ("temperature = 1", "top_p = nan", r"in \(0, 1\]"),
    (FAMILY, f"{FAMILY}\narchitecture = {{ layers = 2, heads = 2 }}", "kv_heads is missing"),
]
HINTS = ["max_model_len", "pairs", "temperature", "'mine'?; to keep another, add its"]
"""Of the first mistakes: the name that is meant."""


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [(*case, hint) for case, hint in zip_longest(MISTAKES, HINTS, fillvalue="")],
)
def test_a_mistake_is_named(config: Config, old: str, new: str, message: str, hint: str) -> None:
    assert old in MINE
    users_file(config, MINE.replace(old, new, 1))
    with pytest.raises(ConfigError, match=message) as e:
        load_pairs(config)
    assert "models.toml" in str(e.value)
    assert hint in (e.value.hint or "")


@pytest.mark.parametrize("place", ["own", "users"])
def test_a_model_in_a_hub_cache_is_found(config: Config, tmp_path: Path, place: str) -> None:
    pair = find_pair("qwen-1.5b+skywork-1.5b", config)
    spec, hub = pair.generator, locate_hub(config) if place == "own" else tmp_path / "hf" / "hub"
    with pytest.raises(CheckpointError, match="not on this machine") as e:
        resolve_model(spec, config)
    assert e.value.hint == "flashedge models pull Qwen/Qwen2.5-1.5B-Instruct"
    made = write_hub_model(hub, spec.source, spec.revision, "Qwen2ForCausalLM")
    assert resolve_model(spec, config) == made
    assert locate_model(replace(spec, revision="0" * 40), config) is None
    assert pair.verifier.revision == "main", "which the cache has a commit for"
    made = write_hub_model(hub, pair.verifier.source, "1" * 40, "Qwen2ForPrmModel")
    assert resolve_model(pair.verifier, config) == made


def test_a_model_in_a_folder_is_found(config: Config, tmp_path: Path) -> None:
    users_file(config, MINE.replace("/models", str(tmp_path)))
    pair = find_pair("mine", config)
    for missing in (pair.generator, replace(pair.generator, source="~no-such-user/model")):
        with pytest.raises(CheckpointError, match="no model folder"):
            resolve_model(missing, config)
    write_model(tmp_path / "g")
    write_model(tmp_path / "v", "MistralForCausalLM")
    assert resolve_model(pair.generator, config) == tmp_path / "g"
    assert resolve_model(pair.verifier, config) == tmp_path / "v"


def test_a_changed_file_is_read_again_and_a_removed_one_forgotten(config: Config) -> None:
    shipped = dict(load_pairs(config))
    for tokens in (1000, 2000):  # the file's size stays
        users_file(config, MINE.replace("max_path_tokens = 1000", f"max_path_tokens = {tokens}"))
        assert load_pairs(config)["mine"].max_path_tokens == tokens
    users_file(config, "[pairs.mine")
    for _ in range(2):
        with pytest.raises(ConfigError, match="not valid TOML"):
            load_pairs(config)
    (config.config_dir / "models.toml").unlink()
    assert dict(load_pairs(config)) == shipped


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "None"),
        ({"enable_thinking": False}, "None"),
        ({"effort": "low", "budget": 9}, "None"),
        ({"two words": 1}, "can't set 'two words'"),
        ({"enable_thinking": None}, "sets enable_thinking to None"),
        ({"documents_": ["x"]}, "sets documents_"),
    ],
)
def test_what_is_wrong_with_a_variable(variables: object, message: str) -> None:
    assert message in str(find_fault(variables))


def test_no_argument_of_the_template_function_can_be_set() -> None:
    arguments = inspect.signature(PreTrainedTokenizerFast.apply_chat_template).parameters
    assert set(arguments) - {"kwargs"} <= RESERVED
