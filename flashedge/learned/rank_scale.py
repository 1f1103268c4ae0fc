"""Turns the scores of a ranking into tokens, so that whoever plans by tokens can use a ranking.

The order of the scores stays what it is. A score gets the length whose rank among the training
prompts is the score's own rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

KNOTS = 65


class RankScale(nn.Module):
    """A rising line through quantiles of scores and of lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scores", torch.linspace(-1, 1, KNOTS, dtype=torch.float64))
        self.register_buffer("log_tokens", torch.linspace(4, 8, KNOTS, dtype=torch.float64))
        self.scores: Tensor
        self.log_tokens: Tensor

    def fit(self, scores: Sequence[float], log_tokens: Sequence[float]) -> None:
        """Set the line. scores, log_tokens: (prompts,) of the training prompts."""
        shares = np.linspace(0, 1, KNOTS)
        for buffer, values in ((self.scores, scores), (self.log_tokens, log_tokens)):
            found = np.quantile(np.asarray(values, dtype=np.float64), shares)
            rising = found + 1e-9 * np.arange(KNOTS)  # no two scores may get one length
            buffer.copy_(torch.from_numpy(rising))

    def find_log_tokens(self, score: float) -> float:
        """The logarithm of the tokens. Beyond the training's scores the line goes on straight."""
        x, y = self.scores.numpy(), self.log_tokens.numpy()
        if x[0] <= score <= x[-1]:
            return float(np.interp(score, x, y))
        slope = (y[-1] - y[0]) / (x[-1] - x[0])
        end = 0 if score < x[0] else -1
        return float(y[end] + slope * (score - x[end]))
