"""The shape of a transformer: the figures that decide what its steps cost."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The figures of config.json that decide the memory of a model's engine. Where one of the last
    three is None, that of a large model is assumed (`engine_memory`)."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int | None = None
    """Width of the residual stream."""
    intermediate: int | None = None
    """Width of the feed-forward layers."""
    vocab: int | None = None
    """Tokens of the vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape(Architecture):
    """An architecture with its weights."""

    name: str
    params: int
    """Number of weights, all of which a step reads."""
    dtype_bytes: int = 2
    """Bytes of an activation, and of a number in the KV cache."""
    stored_bytes: int | None = None
    """Bytes of quantized weights. None means that each weight takes `dtype_bytes`."""

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of a token's keys and values in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype_bytes

    @property
    def weights_bytes(self) -> int:
        return self.params * self.dtype_bytes if self.stored_bytes is None else self.stored_bytes
