"""Each mistake in a model's folder raises an error that names it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flashedge.errors import CheckpointError
from flashedge.models.checkpoints import check_checkpoint
from tests.support.tiny_models import write_model, write_safetensors

PRM = "Qwen2ForProcessRewardModel"


def check_prm(path: Path) -> None:
    check_checkpoint(path, family="qwen_prm", tokens=["<extra_0>"], max_model_len=4096)


def test_a_good_folder_passes(tmp_path: Path) -> None:
    check_checkpoint(write_model(tmp_path / "g"), max_model_len=4096)
    folder = write_model(tmp_path / "v", PRM)
    check_prm(folder)
    remove_shard(folder)
    write_safetensors(folder / "model-00002-of-00002.safetensors", 8)
    check_prm(folder)
    mistral = write_model(tmp_path / "m", "MistralForCausalLM")
    check_checkpoint(mistral, family="step_tag", tokens=["ки", "+", "-"])  # which is ▁ки


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]
)
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    folder = write_model(tmp_path / "m", PRM)
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.") + " is missing"):
        check_prm(folder)


def remove_shard(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


def write_weights(data: bytes | None) -> Callable[[Path], object]:
    """None: those that are there, without their last byte."""

    def spoil(folder: Path) -> None:
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-1] if data is None else data)

    return spoil


def write_config(text: str, name: str = "config.json") -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def write_again(**options: Any) -> Callable[[Path], object]:
    return lambda folder: write_model(folder, PRM, **options)


def write_header(text: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text


HEADERS = (b"[]", b'{"a": {}}', b'{"a": {"data_offsets": []}}', b'{"a": 5}')
HEADERS += (b'{"a": {"dtype": "F32", "data_offsets": [0, 0]}}',)
"""JSON that is no header of safetensors."""
NINE = [f"t{i}" for i in range(8)] + ["<extra_0>"]
POINTER = b"version https://git-lfs.github.com/spec/v1\n"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (write_weights(None), "cut short"),
        (write_weights(POINTER), "git-lfs pointer"),
        (write_weights(b"\xff" * 64), "cut short or damaged"),
        (write_weights(b""), "cut short"),
        *((write_weights(write_header(text)), "cut short or damaged") for text in HEADERS),
        *((write_config(text), "cut short or damaged") for text in ('{"architectures": [', "[]")),
        (write_config(json.dumps({"architectures": [PRM]})), "vocab_size is missing"),
        (
            write_config('{"weight_map": []}', "model.safetensors.index.json"),
            "index.json is cut short",
        ),
        (write_config('{"model": []}', "tokenizer.json"), "tokenizer.json is cut short"),
        (remove_shard, "model-00002-of-00002.safetensors is missing"),
        (write_again(rows=9), "embed 9 tokens, but vocab_size in config.json is 8"),
        (write_again(positions=1024), "max_model_len is 4096, but the model has 1024 positions"),
        (write_again(tokens=NINE), "tokenizer has 9 tokens, but the model has 8"),
        (write_again(tokens=["a", "b"]), "vocabulary has no token '<extra_0>'"),
    ],
)
def test_damage_is_refused(tmp_path: Path, spoil: Callable[[Path], object], message: str) -> None:
    folder = write_model(tmp_path / "m", PRM)
    spoil(folder)
    with pytest.raises(CheckpointError, match=message):
        check_prm(folder)


def test_a_model_of_another_kind_is_refused(tmp_path: Path) -> None:
    generator = write_model(tmp_path / "g")
    prm = write_model(tmp_path / "v", PRM)
    with pytest.raises(CheckpointError, match="not a verifier of family qwen_prm"):
        check_prm(generator)
    with pytest.raises(CheckpointError, match="not a causal language model"):
        check_checkpoint(prm)
    with pytest.raises(CheckpointError, match="no model folder"):
        check_checkpoint(tmp_path / "nowhere")
