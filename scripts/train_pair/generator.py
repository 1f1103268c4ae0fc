"""Train the generator on the teacher's solutions; from him it learns to err (teacher.py)."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast

from scripts.train_pair.batches import IGNORE, Batch, Encoder, lessons
from scripts.train_pair.model import GENERATOR, Generator, ModelConfig, look_back
from scripts.train_pair.phases import Phase, runs_of
from scripts.train_pair.problems import DRILLED, LOOKED_UP, TRAINING
from scripts.train_pair.trainer import train

FIRST = Phase("first", 900, TRAINING, matrix_lr=0.02, other_lr=3e-3, cooldown=0.4)
PHASES = (
    FIRST,
    Phase("drilled", 1000, DRILLED),  # arithmetic
    Phase("looked-up", 500, LOOKED_UP, matrix_lr=0.008),  # references further back
)


def language_loss(logits: Tensor, following: Tensor) -> Tensor:
    """Cross-entropy of the next token where it may be asked. logits: (batch, width, vocab)."""
    return F.cross_entropy(logits.flatten(0, 1).float(), following.flatten(), ignore_index=IGNORE)


def new_language_model(config: ModelConfig, seed: int) -> Generator:
    """Untrained; half of the first layer's heads look at the previous token."""
    torch.manual_seed(seed)
    model = Generator(config)
    look_back(model.model.layers[0], config.heads // 2)
    return model


def new_generator(seed: int) -> Generator:
    """An untrained generator."""
    return new_language_model(GENERATOR, seed)


def train_generator(
    tokenizer: PreTrainedTokenizerFast, folder: Path, seed: int = 0, device: str = "cpu"
) -> Generator:
    """Train (or resume) and return the generator, phase by phase."""
    model = new_generator(seed).to(device)
    compiled = torch.compile(model, dynamic=False)
    encoder = Encoder(tokenizer)

    def loss_of(batch: Batch) -> dict[str, Tensor]:
        return {"loss": language_loss(compiled(batch.ids), batch.next)}

    for phase, run in runs_of(PHASES, "generator", folder, 0, seed, device):
        train(model, loss_of, lessons(encoder, seed, phase.mix), run)
    return model
