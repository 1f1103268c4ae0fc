"""What a pair's models weigh and how they are shaped, without their files where models.toml says
it."""

from __future__ import annotations

from flashedge.config import Config
from flashedge.engine.model_shape import DTYPE_BYTES, model_shape
from flashedge.errors import CheckpointError
from flashedge.models.registry import ENGINE_OVERHEAD_BYTES, ModelSpec, Pair, locate
from flashedge.scheduling.costs.roofline import Device, ModelShape


def shape_of(spec: ModelSpec, config: Config) -> ModelShape:
    """By models.toml, else by the model's folder. Raises CheckpointError when neither tells."""
    known, size = spec.architecture, DTYPE_BYTES.get(spec.dtype, 2)
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
    folder = locate(spec, config)
    if folder is None:
        raise CheckpointError(
            f"the shape of {spec.source} is not known",
            hint="give weights_bytes and architecture in models.toml, or pull the model",
        )
    return model_shape(folder, spec.dtype, spec.weights_bytes)


def pair_shapes(pair: Pair, config: Config) -> tuple[ModelShape, ModelShape]:
    """Of generator and verifier. Raises CheckpointError."""
    return shape_of(pair.generator, config), shape_of(pair.verifier, config)


def kv_room(device: Device, shapes: tuple[ModelShape, ModelShape], share: float) -> int:
    """Bytes of KV that both may have on `share` of the device, as vLLM counts it: weights and what
    an engine process takes beyond them come first. Negative when they do not fit."""
    weights = sum(shape.weights_bytes for shape in shapes)
    return round(device.memory_bytes * share) - weights - 2 * ENGINE_OVERHEAD_BYTES
