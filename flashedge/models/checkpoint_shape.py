"""The shape of a model, by models.toml or by its files. Needs no torch."""

from __future__ import annotations

from math import prod
from pathlib import Path

from flashedge.config import Config
from flashedge.errors import CheckpointError
from flashedge.models.checkpoints import read_config, read_tensor_shapes
from flashedge.models.folders import locate_model, resolve_model
from flashedge.models.shape import ModelShape
from flashedge.models.specs import ModelSpec, Pair

_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def find_pair_shapes(pair: Pair, config: Config) -> tuple[ModelShape, ModelShape]:
    """The shapes of generator and verifier. Raises CheckpointError."""
    return find_shape(pair.generator, config), find_shape(pair.verifier, config)


def find_shape(spec: ModelSpec, config: Config) -> ModelShape:
    """The shape by models.toml, which needs no files, else by the model's folder.

    Raises CheckpointError when neither holds it.
    """
    known, size = spec.architecture, _DTYPE_BYTES.get(spec.dtype, 2)
    if known is not None and spec.weights_bytes is not None:
        return ModelShape(
            name=spec.source.rpartition("/")[2],
            params=spec.weights_bytes // size,
            layers=known.layers,
            heads=known.heads,
            kv_heads=known.kv_heads,
            head_dim=known.head_dim,
            dtype_bytes=size,
        )
    folder = locate_model(spec, config)
    if folder is None:
        raise CheckpointError(
            f"the shape of {spec.source} is not known",
            hint="give weights_bytes and architecture in models.toml, or pull the model",
        )
    return read_shape(folder, spec.dtype, spec.weights_bytes)


def load_shape(spec: ModelSpec, config: Config) -> ModelShape:
    """The shape by the model's files, which are checked. Raises CheckpointError."""
    return read_shape(resolve_model(spec, config), spec.dtype, spec.weights_bytes)


def read_shape(folder: Path, dtype: str, weights_bytes: int | None = None) -> ModelShape:
    """The shape of the model in `folder`, loaded as `dtype`.

    `weights_bytes` replaces the headers of weights that have none (pytorch_model.bin). Raises
    CheckpointError when a figure is missing.
    """
    config = read_config(folder)
    size = _DTYPE_BYTES.get(dtype, 2)
    params = (
        sum(prod(shape) for shape in read_tensor_shapes(folder)) or (weights_bytes or 0) // size
    )
    try:
        heads = int(config["num_attention_heads"])
        shape = ModelShape(
            name=folder.name,
            params=params,
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or int(config["hidden_size"]) // heads),
            dtype_bytes=size,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder}/config.json does not tell the model's shape") from error
    if not params:
        raise CheckpointError(
            f"{folder}: the size of the weights is not known",
            hint="give weights_bytes in models.toml",
        )
    return shape
