"""The model of lengths: an encoder, three poolings of its states, and one head for each parameter.

Ref: arXiv 2604.00499 §3.2. The number of the prompt's tokens is a feature beside them; the paper
does not name it. Every objective has the same encoder and features, so that a scheduler which needs
less of a prediction does not get a worse model.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log

import torch
from torch import Tensor, nn

from flashedge.learned.encoder import PromptEncoder
from flashedge.learned.rank_scale import RankScale
from flashedge.learned.settings import (
    DISTRIBUTION,
    LOG_NORMAL,
    LOG_T_FREE,
    POINT,
    ModelSettings,
)
from flashedge.scheduling.lengths.base import LengthDistribution
from flashedge.scheduling.lengths.families.log_normal import LogNormal
from flashedge.scheduling.lengths.families.log_t import LogT
from flashedge.scheduling.lengths.families.point import Point
from flashedge.scheduling.lengths.request import LengthRequest
from flashedge.types import TokenIds

LOCATION, LOG_SCALE, LOG_NU = 0, 1, 2
MIN_LOG_SCALE, MAX_LOG_SCALE = log(0.02), log(4.0)
MIN_LOG_NU, MAX_LOG_NU = log(0.5), log(100.0)
MAX_LOG_TOKENS = 20.0
USUAL_LOG_TOKENS = 5.0
"""Subtracted from the logarithm of the prompt's tokens, so that the feature is near 0."""


class LengthModel(nn.Module):
    """Maps prompts to the parameters of their lengths."""

    def __init__(self, settings: ModelSettings, encoder: PromptEncoder) -> None:
        super().__init__()
        self.settings = settings
        self.encoder = encoder
        fused = 3 * encoder.width + 1
        self.norm = nn.LayerNorm(3 * encoder.width)
        self.heads = nn.ModuleList(
            _build_head(fused, settings.head, settings.dropout)
            for _ in range(_count_heads(settings))
        )
        self.register_buffer("means", torch.zeros(len(self.heads)))
        self.register_buffer("deviations", torch.ones(len(self.heads)))
        self.means: Tensor
        self.deviations: Tensor
        self.ranks = RankScale()

    def standardize(self, means: Sequence[float], deviations: Sequence[float]) -> None:
        """Set the mean and the standard deviation of each parameter, which the heads predict in
        units of (z-scores)."""
        self.means.copy_(torch.tensor(means))
        self.deviations.copy_(torch.tensor(deviations).clamp(min=1e-3))

    def pool(self, ids: Tensor, mask: Tensor, log_tokens: Tensor) -> Tensor:
        """Fuse what the encoder says of each prompt: (batch, 3·width + 1).

        log_tokens: (batch,) logarithm of the prompt's tokens, the unread ones included.
        """
        states = self.encoder(ids, mask)
        there = mask[..., None]
        mean = (states * there).sum(1) / there.sum(1)
        largest = states.masked_fill(~there, float("-inf")).amax(1)
        pooled = self.norm(torch.cat([states[:, 0], mean, largest], dim=-1))
        return torch.cat([pooled, (log_tokens - USUAL_LOG_TOKENS)[:, None]], dim=-1)

    def apply_heads(self, fused: Tensor) -> Tensor:
        """(batch, 3·width + 1) -> (batch, heads), as z-scores."""
        return torch.cat([head(fused) for head in self.heads], dim=-1)

    def restore(self, scores: Tensor) -> Tensor:
        """Turn z-scores (batch, heads) into location, ln scale and ln nu, within their bounds."""
        values = scores * self.deviations + self.means
        if self.settings.objective != DISTRIBUTION:
            return values
        columns = [
            values[:, LOCATION].clamp(0.0, MAX_LOG_TOKENS),
            values[:, LOG_SCALE].clamp(MIN_LOG_SCALE, MAX_LOG_SCALE),
        ]
        if self.settings.family == LOG_T_FREE:
            columns.append(values[:, LOG_NU].clamp(MIN_LOG_NU, MAX_LOG_NU))
        return torch.stack(columns, dim=-1)

    def forward(self, ids: Tensor, mask: Tensor, log_tokens: Tensor) -> Tensor:
        """(batch, heads): the parameters of each prompt's lengths."""
        return self.restore(self.apply_heads(self.pool(ids, mask, log_tokens)))

    # ------------------------------------------------------------ use

    @torch.inference_mode()
    def predict(self, requests: Sequence[LengthRequest]) -> list[LengthDistribution | None]:
        """One distribution for each request, None for those that the encoder can't read. A point
        estimate and a rank are distributions of one point."""
        self.eval()
        read = [self.encoder.read(request) for request in requests]
        places = [i for i, ids in enumerate(read) if ids]
        found: list[LengthDistribution | None] = [None] * len(requests)
        if places:
            batch = build_batch([read[i] for i in places], [requests[i] for i in places])
            for place, row in zip(places, self(*batch).double().tolist(), strict=True):
                found[place] = self._build_distribution(row)
        return found

    def _build_distribution(self, row: Sequence[float]) -> LengthDistribution:
        """Build what the parameters of one prompt stand for."""
        if self.settings.objective == POINT:
            return Point(_to_tokens(row[LOCATION]))
        if self.settings.objective != DISTRIBUTION:
            return Point(_to_tokens(self.ranks.find_log_tokens(row[LOCATION])))
        location, scale = row[LOCATION], exp(row[LOG_SCALE])
        if self.settings.family == LOG_NORMAL:
            return LogNormal(location, scale)
        free = self.settings.family == LOG_T_FREE
        nu = exp(row[LOG_NU]) if free else self.settings.nu
        return LogT(location, scale, nu)


def build_batch(
    read: Sequence[TokenIds], requests: Sequence[LengthRequest]
) -> tuple[Tensor, Tensor, Tensor]:
    """Pad prompts to one length. Returns ids and mask (batch, tokens), and log_tokens (batch,)."""
    lengths = torch.tensor([len(ids) for ids in read])
    mask = torch.arange(int(lengths.max()))[None] < lengths[:, None]
    ids = torch.zeros(mask.shape, dtype=torch.long)
    ids[mask] = torch.tensor([token for one in read for token in one])
    tokens = [
        request.num_prompt_tokens or len(one) for request, one in zip(requests, read, strict=True)
    ]
    return ids, mask, torch.tensor(tokens, dtype=torch.float32).log()


def _count_heads(settings: ModelSettings) -> int:
    if settings.objective != DISTRIBUTION:
        return 1
    return 3 if settings.family == LOG_T_FREE else 2


def _build_head(width: int, hidden: Sequence[int], dropout: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(width, size), nn.GELU(), nn.Dropout(dropout)]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, 1))


def _to_tokens(log_tokens: float) -> float:
    return exp(min(max(log_tokens, 0.0), MAX_LOG_TOKENS))
