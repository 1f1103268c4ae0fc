"""Ends a step where the model is unsure how to go on, so that the search branches there.

Ref: arXiv 2502.13943, which ends a step where the drawn token is improbable. The entropy does not
depend on which token was drawn; few tokens of a chain of thought have a high one, and these are its
forks (arXiv 2506.01939). The rule as it stands here is ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

TOP = 20
"""Tokens whose log-probabilities `estimate_entropy` uses: the most that vLLM reports by default."""


def estimate_entropy(logprobs: Sequence[float]) -> float:
    """Entropy in nats of a next-token distribution, with all tokens but the likeliest as one.

    It is never above the exact entropy. It is below by at most the share of the other tokens times
    the logarithm of their number: by little where the model is sure, and at high entropies by more.

    logprobs: (TOP,) or all there are, of the likeliest tokens from the likeliest on. Their order
    matters in the last bit. The estimate is at most log(TOP + 1) = 3.04.
    """
    likeliest = logprobs[:TOP]
    shares = [math.exp(value) for value in likeliest]
    entropy = -sum(p * value for p, value in zip(shares, likeliest, strict=True) if p > 0)
    others = 1.0 - sum(shares)
    return entropy - others * math.log(others) if others > 0 else entropy


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyRule:
    """Ends a step before a token whose distribution has too much entropy.

    The distribution is the model's own: at temperature 1, before top-k and top-p. The token itself
    is dropped, and each child of the node draws it anew with its own seed.
    """

    threshold: float
    """Nats. More entropy than this ends the step."""
    min_tokens: int
    """Least tokens of a step, at least 1. The first token of a step often is an uncertain one."""

    def ends_before(self, entropy: float, count: int) -> bool:
        """Whether the step ends with its first `count` tokens, before the one with this entropy."""
        return count >= self.min_tokens and entropy > self.threshold

    def count_kept(self, entropies: Sequence[float], count: int = 0) -> int:
        """How many of the next tokens belong to the step. All of them if it does not end here.

        entropies: (num_tokens,); count: tokens of the step before these.
        """
        ends = (at for at, e in enumerate(entropies) if self.ends_before(e, count + at))
        return next(ends, len(entropies))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EntropyRule:
        """The inverse of `to_json`."""
        return cls(**data)
