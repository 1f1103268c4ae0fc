"""Distributions of a length's logarithm: ln X = mu + sigma·Z with a standard variable Z.

They share how tokens become z. A length is positive, so what is not positive gets z = −∞.
"""

from __future__ import annotations

from math import isfinite, log

import numpy as np

from flashedge.scheduling.lengths.base import Floats


def take_logarithm(tokens: Floats) -> Floats:
    """Compute ln(tokens), −∞ for tokens that are not positive."""
    tokens = np.asarray(tokens, dtype=np.float64)
    logs = np.full(tokens.shape, -np.inf)
    np.log(tokens, out=logs, where=tokens > 0)
    return logs


def standardize(tokens: Floats, mu: float, sigma: float) -> Floats:
    """Compute z = (ln(tokens) − mu) / sigma."""
    return (take_logarithm(tokens) - mu) / sigma


def change_variable(log_density: Floats, tokens: Floats, sigma: float) -> Floats:
    """Turn the log density of z into that of the tokens: divide by sigma·tokens.

    The density of tokens that are not positive is 0, and so it is at infinity.
    """
    logs = take_logarithm(tokens)
    density = np.full(logs.shape, -np.inf)
    np.subtract(log_density, logs + log(sigma), out=density, where=np.isfinite(logs))
    return density


def check_scale(name: str, value: float) -> None:
    """Raises ValueError unless the value is positive and finite."""
    if not (isfinite(value) and value > 0):
        raise ValueError(f"{name} is {value}, but must be positive and finite")


def check_location(name: str, value: float) -> None:
    """Raises ValueError unless the value is finite."""
    if not isfinite(value):
        raise ValueError(f"{name} is {value}, but must be finite")
