"""Embeds short texts with a BERT-like model in the format of sentence-transformers.

This module imports torch and transformers, so only the worker and measurements import it.
"""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoTokenizer

from flashedge.models.checkpoints import check_embedder

MAX_CACHED = 20_000  # vectors: 60 MB for all-MiniLM-L6-v2


class Embedder:
    """Turns texts into unit vectors: the mean of the last layer's states, normalized.

    A text's vector depends on the text alone, bit for bit: each runs by itself on the CPU in fp32.
    Text after the model's own limit (256 tokens for all-MiniLM-L6-v2) is ignored. Prompts that a
    model card recommends are not added. Ref: Reimers and Gurevych, arXiv 1908.10084 §3 (mean
    pooling).
    """

    def __init__(self, folder: Path) -> None:
        """Raises CheckpointError unless `folder` holds such a model (`check_embedder`)."""
        encoder = check_embedder(folder)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(encoder, local_files_only=True)
        self._model: Any = AutoModel.from_pretrained(
            encoder, local_files_only=True, dtype=torch.float32
        ).eval()
        self._max_tokens = _read_max_tokens(encoder, self._model.config.max_position_embeddings)
        self._cache: dict[str, torch.Tensor] = {}

    def embed(self, texts: list[str]) -> torch.Tensor:
        """texts: (n,), n >= 1 -> (n, dim) of length 1, fp64."""
        if len(self._cache) + len(texts) > MAX_CACHED:
            self._cache.clear()
        for text in texts:
            if text not in self._cache:
                self._cache[text] = self._embed_one(text)
        return torch.stack([self._cache[text] for text in texts])

    def compute_cosines(self, texts: list[str]) -> torch.Tensor:
        """texts: (n,), n >= 1 -> (n, n) in [-1, 1], rounded to six places so that ties are ties."""
        vectors = self.embed(texts)
        return (vectors @ vectors.T).clamp(-1.0, 1.0).round(decimals=6)

    @torch.inference_mode()
    def _embed_one(self, text: str) -> torch.Tensor:
        encoded = self._tokenizer(
            text, return_tensors="pt", truncation=True, max_length=self._max_tokens
        )
        states = self._model(**encoded).last_hidden_state[0].double()  # (tokens, dim)
        mean: torch.Tensor = states.mean(0)
        unit: torch.Tensor = mean / mean.norm().clamp(min=1e-12)
        return unit


def _read_max_tokens(encoder: Path, positions: int) -> int:
    """Tokens of a text that the model reads: its `max_seq_length`, at most its `positions`."""
    file = encoder / "sentence_bert_config.json"
    own = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    limit = own.get("max_seq_length")
    return min(limit, positions) if isinstance(limit, int) and limit > 0 else positions
