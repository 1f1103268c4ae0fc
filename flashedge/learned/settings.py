"""What a length model is made of and how it is trained: plain values that its file holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from flashedge.scheduling.lengths.families.log_t import NU

LOG_T, LOG_T_FREE, LOG_NORMAL = "log_t", "log_t_free", "log_normal"
FAMILIES = (LOG_T, LOG_T_FREE, LOG_NORMAL)
"""Distributions that a model predicts. log_t has nu = 3.5; log_t_free predicts nu as well."""
DISTRIBUTION, POINT, RANKING = "distribution", "point", "ranking"
OBJECTIVES = (DISTRIBUTION, POINT, RANKING)
"""distribution: all of a length's distribution, as TIE. point: the mean of its logarithm, as SSJF.
ranking: only which prompt has the longer outputs, as LTR."""
LIKELIHOOD, FITTED = "likelihood", "fitted"
LOSSES = (LIKELIHOOD, FITTED)
"""likelihood: of the outputs themselves, the cut ones as longer. fitted: the squared error of mu
and ln sigma that were fitted to each prompt before, as the paper trains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSettings:
    """The transformer that reads a prompt."""

    checkpoint: str | None = None
    """A folder with a pretrained encoder, such as DeBERTa-v3, which then reads the text. None: a
    small encoder over the generator's tokens, which is trained from scratch."""

    vocabulary: int = 8_192
    """Rows of the small encoder's embedding. Tokens of a larger vocabulary share rows."""

    max_tokens: int = 256
    """Tokens of a prompt that are read: a quarter from its beginning, the others from its end."""

    width: int = 128
    layers: int = 2
    heads: int = 4
    dropout: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """A model of lengths."""

    encoder: EncoderSettings = field(default_factory=EncoderSettings)
    objective: str = DISTRIBUTION
    """One of OBJECTIVES."""

    family: str = LOG_T
    """One of FAMILIES. It matters for the objective distribution alone."""

    nu: float = NU
    """Degrees of freedom of the family log_t."""

    head: tuple[int, ...] = (256, 256, 128)
    """Widths of the hidden layers of each head. Ref: arXiv 2604.00499 §3.2."""

    dropout: float = 0.1
    """Of the heads."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`. Raises KeyError, TypeError."""
        encoder = EncoderSettings(**data["encoder"])
        return cls(**{**data, "encoder": encoder, "head": tuple(data["head"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """How a model is trained: first all of it, then its heads alone on a frozen encoder."""

    loss: str = LIKELIHOOD
    """One of LOSSES, for the objective distribution."""

    epochs: int = 15
    """Passes over the prompts in the first stage."""

    head_epochs: int = 15
    """Passes in the second stage."""

    batch: int = 32
    """Prompts in a step of the optimizer. A ranking is learned within a batch."""

    learning_rate: float = 5e-4
    encoder_rate: float = 2e-5
    """Learning rate of a pretrained encoder."""

    head_rate: float = 3e-4
    """Learning rate of the second stage."""

    weight_decay: float = 0.01
    validation_share: float = 0.1
    """Share of the prompts that chooses the best epoch and is not trained on."""

    seed: int = 0
