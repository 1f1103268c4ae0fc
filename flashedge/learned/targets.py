"""What a model is trained towards: the outputs of each prompt, and what is fitted to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from flashedge.learned.settings import DISTRIBUTION, LOG_T_FREE, ModelSettings
from flashedge.scheduling.lengths.families.log_normal import LogNormal
from flashedge.scheduling.lengths.families.log_t import LogT
from flashedge.scheduling.lengths.fit import fit
from flashedge.scheduling.lengths.observed import OutputLengths


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """The outputs of a batch of prompts, one after the other."""

    prompt: Tensor
    """(num_points,) index of the prompt in the batch."""

    logs: Tensor
    """(num_points,) ln tokens."""

    is_censored: Tensor
    """(num_points,) whether the output went on from there."""

    weights: Tensor
    """(num_points,) that add up to 1 for each prompt."""


def gather_outputs(lengths: Sequence[OutputLengths]) -> Outputs:
    """Put the outputs of a batch into tensors."""
    points = [
        (index, log(tokens), cut, weight / one.num_outputs)
        for index, one in enumerate(lengths)
        for tokens, cut, weight in zip(one.tokens, one.is_censored, one.weights, strict=True)
    ]
    prompt, logs, is_censored, weights = zip(*points, strict=True)
    return Outputs(
        prompt=torch.tensor(prompt),
        logs=torch.tensor(logs, dtype=torch.float32),
        is_censored=torch.tensor(is_censored),
        weights=torch.tensor(weights, dtype=torch.float32),
    )


def fit_targets(lengths: Sequence[OutputLengths], settings: ModelSettings) -> Tensor:
    """Fit each prompt's outputs: (prompts, heads).

    For distributions these are mu, ln sigma and for free nu also ln nu. The other objectives have
    the mean of the logarithm, where a censored output counts as longer.
    """
    return torch.tensor([_fit_one(one, settings) for one in lengths], dtype=torch.float32)


def _fit_one(lengths: OutputLengths, settings: ModelSettings) -> list[float]:
    family = settings.family if settings.objective == DISTRIBUTION else "log_normal"
    counted = [
        (tokens, cut)
        for tokens, cut, weight in zip(
            lengths.tokens, lengths.is_censored, lengths.weights, strict=True
        )
        for _ in range(round(weight))  # where paths part the weight is negative: none
    ]
    tokens, is_censored = zip(*counted, strict=True)
    found = fit(family, tokens, is_censored)
    assert isinstance(found, LogT | LogNormal), "the families of a model"
    if settings.objective != DISTRIBUTION:
        return [found.mu]
    values = [found.mu, log(found.sigma)]
    if settings.family == LOG_T_FREE:
        assert isinstance(found, LogT)
        values.append(log(found.nu))
    return values
