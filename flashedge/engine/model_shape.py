"""A checkpoint's shape, from config.json and the headers of its weights: no torch."""

from __future__ import annotations

from math import prod
from pathlib import Path

from flashedge.errors import CheckpointError
from flashedge.models.checkpoints import read_config, tensor_shapes
from flashedge.scheduling.costs.roofline import ModelShape

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def model_shape(path: Path, dtype: str, weights_bytes: int | None = None) -> ModelShape:
    """The shape of the model in `path` as it runs in `dtype`. weights_bytes: stands in for weights
    whose headers can't be read (pytorch_model.bin).

    Raises CheckpointError when the folder does not tell.
    """
    config = read_config(path)
    size = DTYPE_BYTES.get(dtype, 2)
    params = sum(prod(shape) for shape in tensor_shapes(path)) or (weights_bytes or 0) // size
    try:
        heads = int(config["num_attention_heads"])
        shape = ModelShape(
            name=path.name,
            params=params,
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or int(config["hidden_size"]) // heads),
            dtype_bytes=size,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}/config.json does not tell the model's shape") from error
    if not params:
        raise CheckpointError(
            f"{path}: the size of the weights is not known",
            hint="give weights_bytes in models.toml",
        )
    return shape
