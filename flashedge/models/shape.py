"""The shape of a transformer: the figures that decide what its steps cost."""

from dataclasses import dataclass

_UNIT_TOKENS = 32
"""Tokens of the largest of the blocks that vLLM's kernels work with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedLayers:
    """The layers of a model whose memory does not grow with a path: those that attend within a
    sliding window, or keep a recurrent state (Gated DeltaNet)."""

    layers: int
    bytes: int
    """Of one layer: the KV of one token in the window, or the state of one path."""
    window: int | None = None
    """Tokens that a layer attends to. None: it keeps a recurrent state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The figures of config.json that decide the memory of a model's engine. Where hidden,
    intermediate or vocab is None, that of a large model is assumed (`engine_memory`)."""

    layers: int
    """All layers, `bounded` ones included."""
    heads: int
    kv_heads: int
    """With `head_dim`, of the layers whose KV grows with a path."""
    head_dim: int
    bounded: BoundedLayers | None = None
    """The layers whose memory is bounded, if there are any."""
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
    """Number of weights, all of which a step is taken to read. A mixture of experts reads fewer."""
    dtype_bytes: int = 2
    """Bytes of an activation, and of a number in the KV cache."""
    stored_bytes: int | None = None
    """Bytes of quantized weights. None means that each weight takes `dtype_bytes`."""

    is_multimodal: bool = False
    """Whether the checkpoint has parts that see or hear, too."""

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of a token's keys and values in all layers that have them for it, those with a
        sliding window included."""
        has_window = self.bounded is not None and self.bounded.window is not None
        return self._growing_bytes + (self._count_bounded_bytes() if has_window else 0)

    @property
    def _growing_layers(self) -> int:
        return self.layers - (self.bounded.layers if self.bounded else 0)

    @property
    def _growing_bytes(self) -> int:
        """Bytes of a token's KV in the layers that keep it."""
        return 2 * self._growing_layers * self.kv_heads * self.head_dim * self.dtype_bytes

    @property
    def state_tokens(self) -> int:
        """Tokens of one of vLLM's blocks where layers keep states, 1 where none does. vLLM makes a
        block of KV in a layer as large as a layer's state, and a path has whole blocks."""
        if self.bounded is None or self.bounded.window is not None:
            return 1
        tokens = -(-self.bounded.bytes * self._growing_layers // self._growing_bytes)
        return -(-tokens // _UNIT_TOKENS) * _UNIT_TOKENS

    def _count_bounded_bytes(self) -> int:
        """Count the bytes of a token in all windows, or of a path's states."""
        if self.bounded is None:
            return 0
        if self.bounded.window is not None:
            return self.bounded.layers * self.bounded.bytes
        return self.bounded.layers * self.state_tokens * self._growing_bytes // self._growing_layers

    def count_path_bytes(self, tokens: int, in_flight_tokens: int = 0) -> int:
        """Count the bytes of KV and states of a path of `tokens` tokens.

        vLLM keeps two states of a path: the one that goes on, and one from which other paths can
        begin. Beyond a sliding window it keeps the path's tokens that are in flight.
        """
        if self.bounded is None or self.bounded.window is None:
            kept = 2
        else:
            kept = min(tokens, self.bounded.window + in_flight_tokens + _UNIT_TOKENS)
        whole = -(-tokens // self.state_tokens) * self.state_tokens
        return whole * self._growing_bytes + kept * self._count_bounded_bytes()

    @property
    def weights_bytes(self) -> int:
        return self.params * self.dtype_bytes if self.stored_bytes is None else self.stored_bytes
