"""The shape of a transformer: the figures that decide what its steps cost."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The figures of config.json that decide the memory of a model's engine."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int | None = None
    """Width of the residual stream. Where one of these last three is not known, the memory of a
    step is assumed to be a large model's (`engine_memory`)."""
    intermediate: int | None = None
    """Width of the feed-forward layers."""
    vocab: int | None = None
    """Tokens of the vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape(Architecture):
    """An architecture with its weights."""

    name: str
    params: int
    """Weights that each step reads."""
    dtype_bytes: int = 2
    """Bytes of an activation, and of a number in the KV cache."""
    stored_bytes: int | None = None
    """Bytes of the weights where they do not have `dtype_bytes` each: they are quantized."""

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype_bytes

    @property
    def weights_bytes(self) -> int:
        return self.params * self.dtype_bytes if self.stored_bytes is None else self.stored_bytes
