"""The shape of a transformer: the figures that decide what its steps cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    name: str
    params: int
    """Weights that each step reads."""
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype_bytes: int = 2
    """Bytes of an activation, and of a number in the KV cache."""
    stored_bytes: int | None = None
    """Bytes of the weights where they do not have `dtype_bytes` each: they are quantized."""
    hidden_size: int | None = None
    """Width of the residual stream."""
    intermediate_size: int | None = None
    """Width of the feed-forward layers."""
    vocab_size: int | None = None

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype_bytes

    @property
    def weights_bytes(self) -> int:
        return self.params * self.dtype_bytes if self.stored_bytes is None else self.stored_bytes
