"""A prediction without doubt."""

from dataclasses import dataclass

import numpy as np

from flashedge.scheduling.lengths.distribution import Floats


@dataclass(frozen=True, slots=True)
class Point:
    """One length and no doubt, as schedulers before TIE predict it."""

    tokens: float

    def log_survival(self, tokens: Floats) -> Floats:
        return np.where(np.asarray(tokens) < self.tokens, 0.0, -np.inf)

    def inverse_survival(self, share: Floats) -> Floats:
        return np.full(np.shape(share), float(self.tokens))
