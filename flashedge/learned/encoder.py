"""What reads a prompt: a small transformer over the generator's tokens, or a pretrained encoder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flashedge.errors import CheckpointError
from flashedge.learned.settings import EncoderSettings
from flashedge.scheduling.lengths.request import LengthRequest
from flashedge.types import TokenIds

PADDING, CLS, FIRST_TOKEN = 0, 1, 2
"""Ids of the small encoder. Those of the generator follow."""
_SPREAD = 2_654_435_761  # Knuth's multiplicative hash, so that neighbours do not share a row


class PromptEncoder(nn.Module, ABC):
    """Reads prompts. The state of a prompt's first token stands for the whole ([CLS])."""

    width: int

    @abstractmethod
    def read(self, request: LengthRequest) -> TokenIds:
        """The prompt in the encoder's ids, [CLS] first. Empty where it can't read the request."""

    @abstractmethod
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """ids, mask: (batch, tokens); the mask is true where there is a token. Returns the states,
        (batch, tokens, width)."""


class SmallEncoder(PromptEncoder):
    """A transformer of a few hundred thousand weights, which fits a prompt's own generator."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__()
        self._settings = settings
        self.width = settings.width
        self.tokens = nn.Embedding(FIRST_TOKEN + settings.vocabulary, self.width, PADDING)
        self.positions = nn.Embedding(1 + settings.max_tokens, self.width)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.02)
        layer = nn.TransformerEncoderLayer(
            self.width,
            settings.heads,
            dim_feedforward=2 * self.width,
            dropout=settings.dropout,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.layers = nn.TransformerEncoder(
            layer, settings.layers, nn.LayerNorm(self.width), enable_nested_tensor=False
        )

    def read(self, request: LengthRequest) -> TokenIds:
        if not request.prompt_ids:
            return ()
        kept = cut_middle(request.prompt_ids, self._settings.max_tokens)
        return (CLS, *(FIRST_TOKEN + self._find_row(token) for token in kept))

    def _find_row(self, token: int) -> int:
        rows = self._settings.vocabulary
        return token if token < rows else (token * _SPREAD % 2**32) % rows

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        states = self.tokens(ids) + self.positions(places)
        found: Tensor = self.layers(states, src_key_padding_mask=~mask)
        return found


class CheckpointEncoder(PromptEncoder):
    """A pretrained encoder with its own tokenizer, such as DeBERTa-v3-base.

    Ref: arXiv 2604.00499 §3.2, He et al. 2111.09543.
    """

    def __init__(self, folder: Path, max_tokens: int, *, with_weights: bool) -> None:
        """with_weights: whether the folder holds the weights, not only the shape of the model.

        Raises CheckpointError.
        """
        super().__init__()
        from transformers import AutoConfig, AutoModel, AutoTokenizer

        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            if with_weights:
                self.model: Any = AutoModel.from_pretrained(
                    folder, local_files_only=True, dtype=torch.float32
                )
            else:
                config = AutoConfig.from_pretrained(folder, local_files_only=True)
                self.model = AutoModel.from_config(config)
        except (OSError, ValueError, KeyError) as error:
            raise CheckpointError(f"{folder} holds no encoder: {error}") from error
        self.width = int(self.model.config.hidden_size)
        positions = int(getattr(self.model.config, "max_position_embeddings", max_tokens))
        self._max_tokens = min(max_tokens, positions)

    def read(self, request: LengthRequest) -> TokenIds:
        if not request.text:
            return ()
        encoded = self.tokenizer(request.text, truncation=True, max_length=self._max_tokens)
        return tuple(encoded["input_ids"])

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        found: Tensor = self.model(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        return found

    def save_shape(self, folder: Path) -> None:
        """Write the configuration and the tokenizer, without the weights."""
        self.model.config.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def build_encoder(settings: EncoderSettings) -> PromptEncoder:
    """Build the encoder that is to be trained. Raises CheckpointError."""
    if settings.checkpoint is None:
        return SmallEncoder(settings)
    folder = Path(settings.checkpoint)
    return CheckpointEncoder(folder, settings.max_tokens, with_weights=True)


def cut_middle(ids: TokenIds, most: int) -> TokenIds:
    """Keep at most `most` ids: a quarter from the beginning and the others from the end."""
    if len(ids) <= most:
        return ids
    first = most // 4
    return (*ids[:first], *ids[len(ids) - (most - first) :])
