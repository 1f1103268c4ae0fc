"""How long outputs became: what a distribution of lengths is learned from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from flashedge.scheduling.lengths.base import Floats, LengthDistribution


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputLengths:
    """The outputs of one prompt. A censored one is only known to be longer.

    In a search tree, paths share their beginnings. A path that goes on as four children counts once
    up to where they part, so that point holds a weight of 1 - 4. The weights of a tree add up to
    the number of its first steps.
    """

    tokens: tuple[int, ...]
    """(num_points,) tokens of each output, at least 1."""

    is_censored: tuple[bool, ...]
    """(num_points,) whether a limit, a pruning or a cancel ended it, and not the model."""

    weights: tuple[float, ...]
    """(num_points,) how often each of them counts. Only censored points may be negative."""

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if not len(self.tokens) == len(self.is_censored) == len(self.weights):
            raise ValueError("tokens, is_censored and weights must have one length")
        if any(tokens < 1 for tokens in self.tokens):
            raise ValueError("an output has at least one token")
        if any(w < 0 and not cut for w, cut in zip(self.weights, self.is_censored, strict=True)):
            raise ValueError("an output that ended can't have a negative weight")

    @classmethod
    def from_outputs(cls, tokens: Sequence[int], is_censored: Sequence[bool] = ()) -> Self:
        """Outputs that share nothing. is_censored: empty where none is. Raises ValueError."""
        cut = tuple(is_censored) or (False,) * len(tokens)
        return cls(tokens=tuple(tokens), is_censored=cut, weights=(1.0,) * len(tokens))

    @property
    def num_outputs(self) -> float:
        """Outputs, the censored ones included."""
        return sum(self.weights)

    @property
    def ended(self) -> tuple[int, ...]:
        """Tokens of the outputs that the model ended, each as often as it counts."""
        pairs = zip(self.tokens, self.is_censored, self.weights, strict=True)
        return tuple(tokens for tokens, cut, w in pairs if not cut for _ in range(round(w)))

    def compute_log_likelihood(self, distribution: LengthDistribution) -> float:
        """Compute ln P(these outputs) under the distribution, in nats."""
        tokens: Floats = np.asarray(self.tokens, dtype=np.float64)
        cut, weights = np.asarray(self.is_censored, dtype=bool), np.asarray(self.weights)
        ended = distribution.logpdf(tokens[~cut]) @ weights[~cut]
        return float(ended + distribution.log_survival(tokens[cut]) @ weights[cut])
