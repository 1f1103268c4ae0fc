"""Finds a model's shape and the size of its weights, in its files or else in models.toml."""

import re
from collections.abc import Mapping
from dataclasses import fields
from math import prod
from pathlib import Path
from typing import Any

from flashedge.config import Config
from flashedge.errors import CheckpointError
from flashedge.models.checkpoints import get_text_config, read_json, read_tensors
from flashedge.models.folders import locate_model, resolve_model
from flashedge.models.shape import BoundedLayers, ModelShape
from flashedge.models.specs import STORED_BYTES, ModelSpec, Pair


def find_pair_shapes(pair: Pair, config: Config) -> tuple[ModelShape, ModelShape]:
    """Find the shapes of (generator, verifier). Raises CheckpointError like `find_shape`."""
    return find_shape(pair.generator, config), find_shape(pair.verifier, config)


def find_shape(spec: ModelSpec, config: Config) -> ModelShape:
    """Read the shape from the model's files if they are complete on this machine, else from
    models.toml. Raises CheckpointError when neither gives it."""
    known = spec.architecture
    if locate_model(spec, config) is not None:
        try:
            return load_shape(spec, config)
        except CheckpointError:
            if known is None or spec.weights_bytes is None:
                raise
    if known is None or spec.weights_bytes is None:
        raise CheckpointError(
            f"the shape of {spec.source} is not known",
            hint="give weights_bytes and architecture in models.toml, or pull the model",
        )
    size = STORED_BYTES.get(spec.dtype, 2)
    return ModelShape(
        **{field.name: getattr(known, field.name) for field in fields(known)},
        name=spec.source.rpartition("/")[2],
        params=spec.parameters or spec.weights_bytes // size,
        dtype_bytes=size,
        stored_bytes=spec.weights_bytes if spec.parameters else None,
    )


def load_shape(spec: ModelSpec, config: Config) -> ModelShape:
    """Read the shape from the model's files, which are checked. Raises CheckpointError."""
    return read_shape(resolve_model(spec, config), spec)


def read_shape(folder: Path, spec: ModelSpec) -> ModelShape:
    """Read the shape from the files in `folder`. Raises CheckpointError when a figure is missing.

    Weights without headers (pytorch_model.bin) have the size that the entry's `weights_bytes` says.
    """
    whole, size = read_json(folder / "config.json"), STORED_BYTES.get(spec.dtype, 2)
    config = get_text_config(whole)
    quantized = whole.get("quantization_config") or config.get("quantization_config")
    params, stored = count_weights(
        read_tensors(folder),
        quantized,
        dtype_bytes=size,
        is_fp8=spec.quantization is not None,
        is_tied=bool(config.get("tie_word_embeddings", whole.get("tie_word_embeddings"))),
    )
    if not params and spec.weights_bytes:
        params, stored = spec.parameters or spec.weights_bytes // size, spec.weights_bytes
    try:
        heads = int(config["num_attention_heads"])
        shape = ModelShape(
            name=folder.name,
            params=params,
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(_find_global(config, "num_key_value_heads") or heads),
            head_dim=int(_find_global(config, "head_dim") or int(config["hidden_size"]) // heads),
            bounded=find_bounded_layers(config, size),
            dtype_bytes=size,
            stored_bytes=None if stored == params * size else stored,
            hidden=config.get("hidden_size"),
            intermediate=find_width(config),
            vocab=config.get("vocab_size"),
            is_multimodal=config is not whole,
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise CheckpointError(
            f"{folder}/config.json does not give the model's shape: {error!r}"
        ) from error
    if not params:
        raise CheckpointError(
            f"{folder}: the size of the weights is not known",
            hint="give weights_bytes in models.toml",
        )
    return shape


def find_width(config: Mapping[str, Any]) -> int | None:
    """Find the width by which a step's memory in the feed-forward layers is estimated
    (`engine_memory.estimate_forward`). In a mixture of experts each token has the rows of all its
    experts, and an output of the residual stream's width for each of them."""
    width: int | None = config.get("moe_intermediate_size") or config.get("intermediate_size")
    chosen = config.get("num_experts_per_tok") or config.get("top_k_experts")
    if not chosen or width is None:
        return width
    shared = config.get("shared_expert_intermediate_size") or 0
    return int(chosen * (width + -(-config["hidden_size"] // 3)) + shared)


def find_bounded_layers(config: Mapping[str, Any], dtype_bytes: int) -> BoundedLayers | None:
    """Find the layers that have no KV of all tokens. config: of the text model. None if there are
    none. Raises KeyError, TypeError."""
    kinds = config.get("layer_types") or _list_layer_types(config)
    if linear := kinds.count("linear_attention"):
        keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
        values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
        state = values * config["linear_key_head_dim"] * _STATE_BYTES
        inputs = (2 * keys + values) * (config["linear_conv_kernel_dim"] - 1) * dtype_bytes
        return BoundedLayers(layers=linear, bytes=state + inputs)
    if config.get("sliding_window") and (local := kinds.count("sliding_attention")):
        heads = config["num_attention_heads"]
        dim = config.get("head_dim") or config["hidden_size"] // heads
        token = 2 * (config.get("num_key_value_heads") or heads) * dim * dtype_bytes
        return BoundedLayers(layers=local, bytes=token, window=config["sliding_window"])
    return None


def _list_layer_types(config: Mapping[str, Any]) -> list[str]:
    """List the layers' kinds as transformers does where config.json has no `layer_types`: the last
    of so many layers keeps the KV of all tokens."""
    kind, every = "linear_attention", config.get("full_attention_interval")
    if every is None:
        usual = _USUAL_PATTERNS.get(str(config.get("model_type")))
        kind, every = "sliding_attention", config.get("sliding_window_pattern", usual)
    if not isinstance(every, int) or every < 1:
        return []
    layers = range(1, config["num_hidden_layers"] + 1)
    return [kind if layer % every else "full_attention" for layer in layers]


def _find_global(config: Mapping[str, Any], name: str) -> int | None:
    """Find a figure of the layers that attend to all tokens. Gemma 4 has others for them, by
    another name or, as newer versions of transformers write it, by the numbers of these layers."""
    by_layer = config.get("per_layer_config") or {}
    own = next((each[name] for each in by_layer.values() if name in each), None)
    other = {"head_dim": "global_head_dim"}.get(name, f"num_global_{name.removeprefix('num_')}")
    found: int | None = own or config.get(other) or config.get(name)
    return found


_USUAL_PATTERNS = {"gemma2": 2, "gemma3_text": 6}
"""`sliding_window_pattern` of models whose config.json need not give it."""
_STATE_BYTES = 4
"""Of a number in a recurrent state: the checkpoints of Qwen3.5 ask for float32."""
_FLOAT = ("F64", "F32", "F16", "BF16")
_BITS = {"I64": 64, "I32": 32, "I16": 16, "I8": 8, "U8": 8}
_WEIGHTS = ("weight", "bias", "qweight", "weight_packed", "_blocks")
"""How the names of a quantized checkpoint's weights end. Its other tensors are scales, zero points
and indices."""
_UNUSED = re.compile(r"(^|\.)(mtp|visual|(vision|audio)_\w+|embed_(vision|audio))\.")
"""Parts of a checkpoint that are not loaded: what sees and hears, and layers that draft tokens."""


def count_weights(
    tensors: Mapping[str, Mapping[str, Any]],
    quantized: Mapping[str, Any] | None,
    *,
    dtype_bytes: int,
    is_fp8: bool = False,
    is_tied: bool = False,
) -> tuple[int, int]:
    """Return (number of weights, bytes that they take when they are loaded).

    Floats are loaded in `dtype_bytes` each. With is_fp8, the matrices of all layers are loaded in
    one byte for each weight. With is_tied, the embedding is the output matrix, too, and a copy of
    it is not loaded. A quantized checkpoint packs several weights into one integer and is loaded as
    it is stored. tensors: headers of `read_tensors`.
    quantized: `quantization_config` of the model's config.json, if it has one.
    """
    bits = _find_bits(quantized)
    weights = stored = 0
    for name, tensor in tensors.items():
        if _UNUSED.search(name) or (is_tied and "lm_head." in name):
            continue
        count, kind = prod(tensor["shape"]), tensor["dtype"]
        start, end = tensor["data_offsets"]
        if quantized is not None and not name.endswith(_WEIGHTS):
            stored += end - start
        elif kind in _FLOAT:
            is_matrix = ".layers." in name and (len(tensor["shape"]) == 2 or ".experts." in name)
            weights += count
            stored += count * (1 if is_fp8 and is_matrix else dtype_bytes)
        else:
            weights += count * _BITS.get(kind, bits) // bits
            stored += end - start
    return weights, stored


def _find_bits(quantized: Mapping[str, Any] | None) -> int:
    """Bits of a packed weight, as AWQ, GPTQ or compressed-tensors name them; 8 if none does."""
    found = dict(quantized or {})
    if found.get("quant_method") == "mxfp4":
        return 4
    for group in (found.get("config_groups") or {}).values():
        found = {**(group.get("weights") or {}), **found}
    return int(found.get("bits") or found.get("w_bit") or found.get("num_bits") or 8)
