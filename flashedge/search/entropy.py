"""Ends a step where the model is unsure how to go on, so that the search branches there.

Ref: arXiv 2502.13943, which ends a step where the drawn token is improbable. Entropy does not
depend on the drawn token; the few tokens of high entropy are the forks of a chain of thought (arXiv
2506.01939). The rule as it stands here is ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

TOP = 20
"""Tokens whose log-probabilities are used: the most that vLLM reports by default."""


def estimate_entropy(logprobs: Sequence[float]) -> float:
    """Entropy in nats of a next-token distribution, with all tokens but the likeliest as one.

    Never above the exact entropy, and close to it where the model is sure. logprobs: (TOP,) or all
    there are, from the likeliest token on (the order matters in the last bit). At most log(TOP + 1)
    = 3.04.
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
    is dropped, and each child of the node draws it again with its own seed.
    """

    threshold: float
    """Nats. More entropy than this ends the step."""
    min_tokens: int
    """Least tokens of a step, at least 1. A step's first token is often uncertain."""

    def ends_before(self, entropy: float, count: int) -> bool:
        """Whether the step ends with its first `count` tokens, before the one with this entropy."""
        return count >= self.min_tokens and entropy > self.threshold

    def count_kept(self, entropies: Sequence[float], count: int = 0) -> int:
        """How many of the next tokens belong to the step: all of them if it does not end here.

        entropies: (num_tokens,); count: tokens of the step before these.
        """
        ends = (at for at, e in enumerate(entropies) if self.ends_before(e, count + at))
        return next(ends, len(entropies))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EntropyRule:
        return cls(**data)
