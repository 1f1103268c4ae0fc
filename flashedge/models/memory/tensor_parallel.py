"""What each card holds of a model that vLLM spreads over several by tensor parallelism.

Each card has some of the attention heads, a part of each feed-forward layer and a part of the
vocabulary. The residual stream is whole on every card. Where a model has fewer KV heads than there
are cards, several cards hold the same KV head.

Ref: Shoeybi et al., Megatron-LM, arXiv 1909.08053.
"""

from __future__ import annotations

from flashedge.errors import ConfigError
from flashedge.models.shape import ModelShape

VOCAB_PADDING = 64
"""vLLM pads the vocabulary to a multiple of this before it divides it."""

MOST_CARDS = 16
"""Most cards that an error proposes."""


def check_spread(shape: ModelShape, cards: int, setting: str) -> None:
    """Raises ConfigError, naming `setting`, where vLLM can't divide the model by `cards`."""
    if can_spread(shape, cards):
        return
    possible = [str(n) for n in range(1, MOST_CARDS + 1) if can_spread(shape, n)]
    raise ConfigError(
        f"{shape.name} can't be spread over {cards} cards: they have to share its {shape.heads}"
        f" attention heads, {shape.kv_heads} KV heads and the width of its layers evenly",
        hint=f"give {setting} one of these numbers of cards: {', '.join(possible)}",
        param=setting,
    )


def can_spread(shape: ModelShape, cards: int) -> bool:
    """Whether vLLM can divide the model by `cards`. Sizes that are not known are not checked."""
    vocab = -(-(shape.vocab_size or 0) // VOCAB_PADDING) * VOCAB_PADDING
    divided = (shape.heads, shape.intermediate_size or 0, vocab)
    kv_heads = shape.kv_heads
    return not any(size % cards for size in divided) and (
        kv_heads % cards == 0 or cards % kv_heads == 0
    )


def count_kv_bytes(shape: ModelShape, cards: int) -> int:
    """KV bytes of a token on each card."""
    return shape.kv_bytes_per_token // shape.kv_heads * max(1, shape.kv_heads // cards)


def count_weights_bytes(shape: ModelShape, cards: int) -> int:
    """Bytes of the weights on each card. Norms, which every card holds, are too small to count."""
    whole = shape.weights_bytes
    if cards <= shape.kv_heads or shape.hidden_size is None:
        return -(-whole // cards)
    # Each card holds a whole KV head where an even share would be less than one.
    number_bytes = whole / shape.params
    head = 2 * shape.layers * shape.hidden_size * shape.head_dim * number_bytes
    return round(whole / cards + head * (1 - shape.kv_heads / cards))
