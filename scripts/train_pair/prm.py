"""Train the verifier: a language model below, a comparison above it, and a score at every step's
end.

Three losses on one body. The lower layers learn to *write* right steps (language-model loss, so
that they know what should come). The first layer above them starts as a look at the previous
token, so the layers above compare what was expected with what came: a dense loss asks at every
token whether the step is right up to here. The score head asks at the separator whether any step
so far was wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast

from scripts.train_pair.batches import IGNORE, Batch, Row
from scripts.train_pair.generator import language_loss
from scripts.train_pair.model import VERIFIER, RMSNorm, Verifier, look_back
from scripts.train_pair.trainer import Run, train

LANGUAGE_LAYERS, DENSE_LAYERS = 4, 6


class VerifierTraining(nn.Module):
    """The verifier with its two auxiliary heads, which are not exported."""

    def __init__(self, verifier: Verifier) -> None:
        super().__init__()
        config = verifier.model.config
        self.verifier = verifier
        self.language_norm = RMSNorm(config.hidden, config.eps)
        self.dense_norm = RMSNorm(config.hidden, config.eps)
        self.dense = nn.Linear(config.hidden, 2)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The losses of a batch of labelled rows."""
        return self.losses(batch.ids, batch.next, batch.right, batch.step)

    def losses(
        self, ids: Tensor, following: Tensor, right: Tensor, step: Tensor
    ) -> dict[str, Tensor]:
        """All arguments: (batch, width)."""
        body = self.verifier.model
        states, (low, middle) = body(ids, taps=(LANGUAGE_LAYERS, DENSE_LAYERS))
        language = language_loss(
            F.linear(self.language_norm(low), body.embed_tokens.weight), following
        )
        dense_logits = self.dense(self.dense_norm(middle)).flatten(0, 1).float()
        dense = F.cross_entropy(dense_logits, right.flatten(), ignore_index=IGNORE)
        score_logits = self.verifier.score(states).flatten(0, 1).float()
        score = F.cross_entropy(score_logits, step.flatten(), ignore_index=IGNORE)
        return {
            "loss": language + 2.0 * dense + score,
            "language": language,
            "dense": dense,
            "score": score,
        }


def new_verifier(seed: int) -> Verifier:
    """An untrained verifier, its look-back heads in place."""
    torch.manual_seed(seed + 1)
    model = Verifier(VERIFIER)
    look_back(model.model.layers[0], VERIFIER.heads // 2)
    look_back(model.model.layers[LANGUAGE_LAYERS], VERIFIER.heads - 2)
    return model


def train_verifier(
    make_row: Callable[[int], Row],
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
    steps: int,
    name: str = "prm",
    seed: int = 0,
    device: str = "cpu",
    first_index: int = 150_000_000,
    start: Path | None = None,
    matrix_lr: float = 0.02,
    cooldown: float = 0.4,
) -> Verifier:
    """Train (or resume) and return the verifier; `start` is an earlier run's checkpoint to go on
    from.
    """
    model = VerifierTraining(new_verifier(seed)).to(device)
    if start is not None:
        model.load_state_dict(torch.load(start, weights_only=True, map_location=device)["model"])
    losses = torch.compile(model.losses, dynamic=False)

    def loss_of(batch: Batch) -> dict[str, Tensor]:
        return losses(batch.ids, batch.next, batch.right, batch.step)

    run = Run(
        name=name,
        folder=folder,
        steps=steps,
        seed=seed,
        first_index=first_index + seed * 10_000_000,
        matrix_lr=matrix_lr,
        other_lr=matrix_lr * 0.15,
        cooldown=cooldown,
        device=device,
    )
    train(model, loss_of, make_row, run)
    return model.verifier
