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


QWEN25_1_5B = ModelShape(
    name="Qwen2.5-1.5B", params=1_543_714_304, layers=28, heads=12, kv_heads=2, head_dim=128
)
QWEN25_7B = ModelShape(
    name="Qwen2.5-7B", params=7_615_616_512, layers=28, heads=28, kv_heads=4, head_dim=128
)
MISTRAL_7B = ModelShape(
    name="Mistral-7B", params=7_241_732_096, layers=32, heads=32, kv_heads=8, head_dim=128
)
