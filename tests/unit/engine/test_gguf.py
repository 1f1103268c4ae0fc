"""GGUF files become folders with the same weights and words, or are refused by name."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from flashedge.cli import models as commands
from flashedge.config import load_config
from flashedge.engine import gguf
from flashedge.engine.gguf import GgufModel, open_gguf
from flashedge.errors import CheckpointError
from flashedge.models.registry import find_pair
from tests.support.cli_rig import Cli, failing
from tests.support.gguf_files import Metadata, Tensors, describe, pack_floats, write_gguf
from tests.unit.cli.conftest import cli

__all__ = ["cli"]
KINDS = ("gemma3", "llama", "mistral", "qwen", "qwen3")
TEXTS = (
    "Janet's ducks lay 16 eggs per day.\n\nSo 1234 - 3 =  1231, \\boxed{6}   ки",
    "<|im_start|>user\nnaïve café 日本<|im_end|>",
    " a space before <s>and</s>behind it",
    "",
)
Change = Callable[[Metadata, Tensors], object]


@pytest.fixture(scope="module", params=KINDS)
def made(request: pytest.FixtureRequest, tmp_path_factory: Any) -> tuple[Path, Path, Path]:
    """A checkpoint, its GGUF file, and the folder that this was imported to."""
    top = tmp_path_factory.mktemp(request.param)
    file = write_gguf(top / "tiny.gguf", *describe(f"{request.param}_generator", top / "original"))
    (top / "imported").mkdir()
    open_gguf(file).write(top / "imported")
    return top / "original", file, top / "imported"


def read_logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model.eval().float()(torch.arange(40)[None]).logits
    return logits


def load(folder: Path) -> torch.Tensor:
    return read_logits(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))


def test_the_model_is_the_checkpoint_in_bfloat16(made: tuple[Path, Path, Path]) -> None:
    original, _, imported = made
    model = AutoModelForCausalLM.from_pretrained(original, dtype=torch.float32)
    exact = read_logits(model)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.to(torch.bfloat16).float())
    torch.testing.assert_close(load(imported), read_logits(model), atol=1e-3, rtol=0)
    assert (exact - load(imported)).abs().max() > 1e-3  # the rounding would be seen


def test_the_model_is_what_transformers_reads(made: tuple[Path, Path, Path]) -> None:
    pytest.importorskip("gguf", reason="transformers reads these families by the package gguf")
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    _, file, imported = made
    described = load_gguf_checkpoint(str(file))["config"]
    head_dim = AutoConfig.from_pretrained(imported).head_dim  # not read of Qwen3's files
    config = AutoConfig.for_model(**{**described, "head_dim": head_dim})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    read = load_gguf_checkpoint(
        str(file), return_tensors=True, model_to_load=model, torch_dtype=torch.bfloat16
    )
    missing, unknown = model.load_state_dict(read["tensors"], strict=False)
    assert set(missing) <= {"lm_head.weight"}
    assert not unknown
    model.tie_weights()
    torch.testing.assert_close(load(imported), read_logits(model), atol=1e-3, rtol=0)


def test_the_tokenizer_is_the_checkpoints(made: tuple[Path, Path, Path]) -> None:
    original, _, imported = made
    ours, theirs = AutoTokenizer.from_pretrained(imported), AutoTokenizer.from_pretrained(original)
    for text in TEXTS:
        ids = theirs.encode(text)
        assert ours.encode(text) == ids
        assert ours.decode(ids) == theirs.decode(ids)
    assert ours.chat_template == theirs.chat_template
    assert len(ours) == json.loads((original / "config.json").read_text())["vocab_size"]
    ends = json.loads((imported / "generation_config.json").read_text())["eos_token_id"]
    assert {*theirs.convert_ids_to_tokens(ends)} == {*gguf._ENDS} & {*theirs.get_vocab()}


@pytest.mark.parametrize("kind", [6, 7])
def test_blocks_of_five_bits_are_unpacked_as_ggml_does(kind: int) -> None:
    gguf._add_five_bits()
    draw = np.random.default_rng(0)
    offset = 4 if kind == 7 else 2  # d, for Q5_1 also m, 32 fifth bits, 32 values of four bits
    blocks = draw.integers(0, 256, (3, offset + 20), dtype=np.uint8)
    blocks[:, :offset] = draw.normal(size=(3, offset // 2)).astype("<f2").view(np.uint8)
    wanted = []
    for block in blocks.tolist():
        scale, *least = np.array(block[:offset], np.uint8).view("<f2").astype(np.float32)
        fifth = int.from_bytes(bytes(block[offset : offset + 4]), "little")
        for i in range(32):
            byte = block[offset + 4 + i % 16]
            value = (byte >> 4 if i >= 16 else byte & 15) | (fifth >> i & 1) << 4
            wanted.append(scale * value + least[0] if least else scale * (value - 16))
    found = gguf._unpack(torch.from_numpy(blocks), kind)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6)


def scale_frequencies(factor: float) -> Change:
    """Adds Llama 3's divisors, for heads of 32 and frequencies of base 500,000."""
    found = 500_000.0 ** -(np.arange(16) / 16)
    smooth = (8192 * found / (2 * np.pi) - 1) / 3
    scaled = np.clip(smooth, 0, 1) * (1 - 1 / factor) + 1 / factor

    def change(metadata: Metadata, tensors: Tensors) -> None:
        metadata["llama.rope.freq_base"] = 500_000.0
        tensors["rope_freqs.weight"] = pack_floats(1 / scaled)

    return change


def test_the_scaling_of_llama_3_is_found_by_its_divisors(tmp_path: Path) -> None:
    metadata, tensors = describe("llama_generator", tmp_path / "original")
    scale_frequencies(8.0)(metadata, tensors)
    rope = open_gguf(write_gguf(tmp_path / "a.gguf", metadata, tensors)).config.rope_parameters
    assert (rope["rope_type"], rope["factor"]) == ("llama3", 8.0)


def test_a_linear_scaling_is_kept(tmp_path: Path) -> None:
    metadata, tensors = describe("gemma3_generator", tmp_path / "original")
    metadata |= {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0}
    rope = open_gguf(write_gguf(tmp_path / "a.gguf", metadata, tensors)).config.rope_parameters
    assert (rope["full_attention"]["rope_type"], rope["full_attention"]["factor"]) == (
        "linear",
        8.0,
    )
    assert rope["sliding_attention"]["rope_type"] == "default"


NO_FLOATS = pack_floats(np.full(16, 3.0))
REFUSED: dict[str, tuple[str, Change]] = {
    "mmproj": ("vision", lambda m, _: m.update({"general.type": "mmproj"})),
    "clip": ("vision", lambda m, _: m.update({"general.architecture": "clip"})),
    "qwen2vl": ("vision", lambda m, _: m.update({"general.architecture": "qwen2vl"})),
    "eyes": ("vision", lambda _, t: t.update({"v.patch.weight": pack_floats(np.ones((2, 2)))})),
    "adapter": ("'adapter'", lambda m, _: m.update({"general.type": "adapter"})),
    "part": ("one part of a split model", lambda m, _: m.update({"split.count": 3})),
    "unknown": ("architecture mamba9", lambda m, _: m.update({"general.architecture": "mamba9"})),
    "experts": ("qwen2 with experts", lambda m, _: m.update({"qwen2.expert_count": 8})),
    "base model": ("no chat template", lambda m, _: m.pop("tokenizer.chat_template")),
    "words": ("words of 'odd'", lambda m, _: m.update({"tokenizer.ggml.pre": "odd"})),
    "tokenizer": ("tokenizer 'bert'", lambda m, _: m.update({"tokenizer.ggml.model": "bert"})),
    "yarn": ("positions 'yarn'", lambda m, _: m.update({"qwen2.rope.scaling.type": "yarn"})),
    "lists": ("is not one number", lambda m, _: m.update({"qwen2.attention.head_count": [2, 4]})),
    "figure": ("qwen2.block_count", lambda m, _: m.pop("qwen2.block_count")),
    "layers": ("2 layers of 1073741824", lambda m, _: m.update({"qwen2.block_count": 1 << 30})),
    "shape": ("embed_tokens", lambda m, _: m.update({"qwen2.embedding_length": 128})),
    "missing": ("mlp.up_proj.weight is missing", lambda _, t: t.pop("blk.1.ffn_up.weight")),
    "tensor": ("tensor blk.0.odd.bias", lambda _, t: t.update({"blk.0.odd.bias": NO_FLOATS})),
    "blocks": ("ggml type 39", lambda _, t: t.update({"output_norm.weight": (39, (64,), b"")})),
    "divisors": ("not the scaling of", lambda _, t: t.update({"rope_freqs.weight": NO_FLOATS})),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_supported_is_refused_by_name(what: str, tmp_path: Path) -> None:
    said, change = REFUSED[what]
    metadata, tensors = describe("qwen_generator", tmp_path / "original")
    change(metadata, tensors)
    file = write_gguf(tmp_path / "tiny.gguf", metadata, tensors)
    with pytest.raises(CheckpointError, match=said) as refused:
        open_gguf(file)
    assert str(file) in str(refused.value)


def test_a_part_of_a_split_file_is_refused_by_its_name(tmp_path: Path) -> None:
    """Parts that older tools wrote do not count themselves."""
    file = tmp_path / "tiny-00001-of-00003.gguf"
    write_gguf(file, *describe("qwen_generator", tmp_path / "original"))
    with pytest.raises(CheckpointError, match="one part of a split model") as refused:
        open_gguf(file)
    assert "llama-gguf-split --merge" in str(refused.value.hint)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", *describe("qwen_generator", tmp_path / "original"))
    whole = file.read_bytes()
    with pytest.raises(CheckpointError, match="there is no file"):
        open_gguf(tmp_path / "none.gguf")
    for part, said in (
        (b"", "damaged"),
        (b"XX" + whole[2:], "not a GGUF file"),
        (whole[:-100], "is cut short"),
        (whole[:3000], "damaged"),
    ):
        file.write_bytes(part)
        with pytest.raises(CheckpointError, match=said):
            open_gguf(file)
    start = whole.index(b"output_norm")
    draw = random.Random(0)
    for _ in range(100):  # any damage to what the file says of itself: refused, or not seen
        broken = bytearray(whole)
        broken[draw.choice((draw.randrange(400), start - draw.randrange(900)))] = draw.randrange(
            256
        )
        file.write_bytes(broken)
        try:
            open_gguf(file)
        except CheckpointError as error:
            assert str(file) in str(error)  # noqa: PT017


# ---------------------------------------------------------------- the command


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_gguf(
        tmp_path / "Tiny Chat-Q4_K_M.gguf", *describe("qwen_generator", tmp_path / "original")
    )


def test_import_adds_a_pair_and_rm_removes_it(cli: Cli, file: Path, tmp_path: Path) -> None:
    done = cli("models", "import", str(file), "--verifier", "bundled")
    folder = tmp_path / "home" / "cache" / "imported" / "tiny-chat-q4_k_m"
    assert (done.code, done.out) == (0, f"{folder}\n")
    assert "flashedge up --pair tiny-chat-q4_k_m" in done.err
    pair = find_pair("tiny-chat-q4_k_m", load_config())
    assert (pair.generator.source, pair.generator.max_model_len) == (str(folder), 512)
    assert "Tiny Chat" in cli("models", "show", pair.name).out
    listed = cli("models", "ls", "--fit", "--gpu", "rtx4090", "--json").out
    assert pair.name in [each["name"] for each in json.loads(listed)]
    cli.ends(2, "a model 'tiny-chat-q4_k_m' already", "models", "import", str(file))
    assert cli("models", "rm", pair.name).code == 0
    assert not folder.exists()
    cli.ends(2, "there is no pair", "models", "show", pair.name)


def test_a_chat_template_can_be_given(cli: Cli, tmp_path: Path) -> None:
    metadata, tensors = describe("qwen_generator", tmp_path / "original")
    del metadata["tokenizer.chat_template"]
    file = write_gguf(tmp_path / "base.gguf", metadata, tensors)
    command = ("models", "import", str(file), "--verifier", "none", "--chat-template")
    cli.ends(5, "can't read", *command, str(tmp_path / "none.jinja"))
    cli.ends(2, "--chat-template FILE", *command[:-1])
    (tmp_path / "own.jinja").write_text("{{ messages[0].content }}!")
    folder = cli.ends(0, "as the pair base", *command, str(tmp_path / "own.jinja")).out.strip()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    asked = [{"role": "user", "content": "4 + 7"}]
    assert tokenizer.apply_chat_template(asked, tokenize=False) == "4 + 7!"


OWN_PAIR = """
[pairs.mine]
description = "my own"
generator = "smollm2-135m"
verifier = "bundled"
max_step_tokens = 64
max_path_tokens = 256
"""
OWN_GENERATOR = """
[generators."smollm2-135m"]
source = "my/own"
dtype = "float32"
max_model_len = 2048
"""


def test_an_import_stands_in_for_a_pair_that_is_not_here(cli: Cli, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "t.gguf", *describe("llama_generator", tmp_path / "original"))
    known = find_pair("smollm2-135m", load_config())
    command = ("models", "import", str(file), "--name", known.name)
    folder = cli.ends(0, "as the pair smollm2-135m", *command).out.strip()
    pair = find_pair(known.name, load_config())
    assert (pair.generator.source, pair.verifier) == (folder, known.verifier)
    assert "verifier: none" in cli("models", "show", pair.name).out
    cli.ends(2, "a model 'smollm2-135m' already", *command)
    users = load_config().config_dir / "models.toml"
    with users.open("a") as out:
        out.write(OWN_PAIR)
    assert cli("models", "rm", pair.name).err.count("removed") == 1
    assert find_pair(known.name, load_config()) == known
    assert find_pair("mine", load_config()).generator == known.generator
    users.write_text(OWN_GENERATOR)
    cli.ends(2, "a model 'smollm2-135m' already", *command)
    assert users.read_text() == OWN_GENERATOR
    cli.ends(2, "a model 'bundled' already", *command[:-1], "bundled")


def test_a_file_of_ollamas_store_has_its_models_name(cli: Cli, file: Path, tmp_path: Path) -> None:
    blob = shutil.move(file, tmp_path / "sha256-0123")
    assert cli("models", "import", str(blob)).out.endswith("/tiny-chat\n")
    assert find_pair("tiny-chat", load_config()).verifier.source.startswith("Skywork/")


def test_nothing_is_left_of_an_import_that_fails(
    cli: Cli, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(said: str, *options: str, code: int = 2) -> None:
        cli.ends(code, said, "models", "import", str(file), *options)
        found = [p for p in (tmp_path / "home").rglob("*") if p.is_file()]
        assert [p for p in found if "imported" in p.parts or p.name == "models.toml"] == []

    refuse("there is no verifier 'bundle'", "--verifier", "bundle")
    refuse("can't be named 'a/b'", "--name", "a/b")
    for taken in ("bundled", "qwen3.5-4b", "Qwen3-8B"):  # an alias, and one in other capitals
        refuse(f"there is a model {taken!r} already", "--name", taken)
    full = OSError(28, "No space left on device")
    with monkeypatch.context() as patch:
        patch.setattr(GgufModel, "_write_weights", failing(full))
        refuse("no space left")
    with monkeypatch.context() as patch:
        patch.setattr(commands, "edit_file", failing(commands.ConfigError("can't write")))
        refuse("can't write")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 0))
    refuse("not enough disk")
