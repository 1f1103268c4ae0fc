"""The shape of a model by its files: plain, packed into integers, in 8 bits."""

import json
import struct
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest

from flashedge.config import Config
from flashedge.errors import CheckpointError
from flashedge.models.checkpoint_shape import find_bounded_layers, find_shape, read_shape
from flashedge.models.specs import Architecture, ModelSpec
from tests.support.paths import ROOT
from tests.support.tiny_models import write_hub_model

WIDTH, ROWS = 256, 16
SIZES = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "I64": 8, "F8_E4M3": 1}
SPEC = ModelSpec(source="a/b", dtype="bfloat16", max_model_len=512)
LINEAR = "model.layers.0.mlp.up_proj"
PLAIN = {
    "model.embed_tokens.weight": ("BF16", [ROWS, WIDTH]),
    "model.layers.0.input_layernorm.weight": ("BF16", [WIDTH]),
    f"{LINEAR}.bias": ("BF16", [WIDTH]),
}
REST = ROWS * WIDTH + 2 * WIDTH
MATRIX = WIDTH * WIDTH
FIGURES = {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}


def write_checkpoint(
    folder: Path, tensors: dict[str, tuple[str, list[int]]], quantized: dict[str, Any] | None = None
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = {**FIGURES, "hidden_size": WIDTH, "vocab_size": ROWS}
    if quantized is not None:
        config["quantization_config"] = quantized
    (folder / "config.json").write_text(json.dumps(config))
    header, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + prod(shape) * SIZES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    data = struct.pack("<Q", len(text)) + text + bytes(end)
    (folder / "model.safetensors").write_bytes(data)
    return folder


def pack(bits: int, *, columns: bool, indices: bool = False) -> dict[str, tuple[str, list[int]]]:
    """The tensors of a square matrix in groups of 128: AWQ packs columns, GPTQ rows."""
    packed, groups = WIDTH * bits // 32, WIDTH // 128
    tensors = {
        f"{LINEAR}.qweight": ("I32", [WIDTH, packed] if columns else [packed, WIDTH]),
        f"{LINEAR}.qzeros": ("I32", [groups, packed]),
        f"{LINEAR}.scales": ("F16", [groups, WIDTH]),
    }
    return {**tensors, **({f"{LINEAR}.g_idx": ("I32", [WIDTH])} if indices else {})}


AWQ = pack(4, columns=True)
GPTQ = pack(8, columns=False, indices=True)
FP8 = {
    f"{LINEAR}.weight": ("F8_E4M3", [WIDTH, WIDTH]),
    f"{LINEAR}.weight_scale_inv": ("F32", [2, 2]),
}
COMPRESSED = {
    f"{LINEAR}.weight_packed": ("I32", [WIDTH, WIDTH // 8]),
    f"{LINEAR}.weight_scale": ("BF16", [WIDTH, 2]),
    f"{LINEAR}.weight_shape": ("I64", [2]),
}


@pytest.mark.parametrize(
    ("tensors", "quantized", "matrix_bytes"),
    [
        ({f"{LINEAR}.weight": ("BF16", [WIDTH, WIDTH])}, None, 2 * MATRIX),
        ({f"{LINEAR}.weight": ("F32", [WIDTH, WIDTH])}, None, 2 * MATRIX),
        (AWQ, {"quant_method": "awq", "bits": 4}, MATRIX // 2 + 2 * 32 * 4 + 2 * WIDTH * 2),
        (GPTQ, {"quant_method": "gptq", "bits": 8}, MATRIX + 2 * 64 * 4 + 2 * WIDTH * 2 + 1024),
        (FP8, {"quant_method": "fp8"}, MATRIX + 4 * 4),
        (
            COMPRESSED,
            {"config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}}},
            MATRIX // 2 + 2 * WIDTH * 2 + 16,
        ),
    ],
    ids=["bf16", "fp32", "awq", "gptq", "fp8", "compressed-tensors"],
)
def test_weights_and_their_bytes(
    tmp_path: Path, tensors: dict[str, Any], quantized: dict[str, Any] | None, matrix_bytes: int
) -> None:
    """All of these hold the same matrix."""
    shape = read_shape(write_checkpoint(tmp_path, {**PLAIN, **tensors}, quantized), SPEC)
    assert shape.params == REST + MATRIX
    assert shape.weights_bytes == 2 * REST + matrix_bytes
    assert shape.kv_bytes_per_token == 2 * 2 * 64 * 2  # keys and values stay in 2 bytes


NO_HEADS = {"num_attention_heads": 0, "num_hidden_layers": 2, "hidden_size": 64}


def test_the_shape_is_that_of_the_checkpoint(tmp_path: Path) -> None:
    bundled = ROOT / "flashedge" / "bundled" / "generator"
    shape = read_shape(bundled, replace(SPEC, dtype="float32"))
    stored = (bundled / "model.safetensors").stat().st_size
    assert shape.weights_bytes == pytest.approx(stored, rel=0.05)
    assert (shape.layers, shape.heads, shape.head_dim) == (5, 4, 32)
    for config in ('{"num_attention_heads": 2}', json.dumps(NO_HEADS)):
        (tmp_path / "config.json").write_text(config)
        with pytest.raises(CheckpointError, match="does not give the model's shape"):
            read_shape(tmp_path, SPEC)


def test_online_fp8_halves_the_layers_matrices(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, {**PLAIN, f"{LINEAR}.weight": ("BF16", [WIDTH, WIDTH])})
    shape = read_shape(folder, replace(SPEC, quantization="fp8_per_tensor"))
    assert (shape.params, shape.weights_bytes) == (REST + MATRIX, 2 * REST + MATRIX)


def test_a_copy_of_a_tied_embedding_is_not_loaded(tmp_path: Path) -> None:
    tensors = {**PLAIN, "lm_head.weight": ("BF16", [ROWS, WIDTH])}
    folder = write_checkpoint(tmp_path, tensors)
    assert read_shape(folder, SPEC).params == REST + ROWS * WIDTH
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    assert read_shape(folder, SPEC).params == REST


@pytest.mark.parametrize(
    ("figures", "layers", "window"),
    [
        ({"sliding_window": 8, "sliding_window_pattern": 3}, 5, 8),
        ({"sliding_window": 8, "model_type": "gemma2"}, 4, 8),
        ({"sliding_window": 8}, 0, None),
        ({"sliding_window": None, "sliding_window_pattern": 3}, 0, None),
        (
            {
                "full_attention_interval": 4,
                "linear_num_key_heads": 1,
                "linear_key_head_dim": 8,
                "linear_num_value_heads": 1,
                "linear_value_head_dim": 8,
                "linear_conv_kernel_dim": 4,
            },
            6,
            None,
        ),
    ],
)
def test_kinds_of_layers_are_found_without_a_list_of_them(
    figures: dict[str, Any], layers: int, window: int | None
) -> None:
    told = {**FIGURES, "num_hidden_layers": 7, "hidden_size": WIDTH, **figures}
    found = find_bounded_layers(told, 2)
    assert (found.layers, found.window) == (layers, window) if layers else found is None


def test_the_files_tell_once_all_are_here_and_else_the_entry(config: Config) -> None:
    """A 4-bit model of 1,000,000 weights by its entry."""
    spec = replace(
        SPEC,
        revision="c" * 40,
        parameters=1_000_000,
        weights_bytes=600_000,
        architecture=Architecture(layers=1, heads=4, kv_heads=2, head_dim=64),
    )
    shape = find_shape(spec, config)
    assert (shape.params, shape.weights_bytes) == (1_000_000, 600_000)
    folder = write_hub_model(config.cache_dir / "hub", "a/b", "c" * 40, "Qwen3ForCausalLM")
    told = json.loads((folder / "config.json").read_text())
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps({**told, **FIGURES, "hidden_size": WIDTH}))
    assert find_shape(spec, config).weights_bytes == 8 * 2 * 2  # of the 8 x 2 embedding
    (folder / "model.safetensors").unlink()
    assert find_shape(spec, config).weights_bytes == 600_000, "half a download does not count"
