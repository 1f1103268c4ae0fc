"""Train the generator on the teacher's solutions, mistakes included (`teacher.py`)."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast

from scripts.train_pair.batches import IGNORE, Batch, Encoder, make_lessons
from scripts.train_pair.model import GENERATOR, Generator, ModelConfig, set_look_back
from scripts.train_pair.phases import Phase, list_runs
from scripts.train_pair.problems import DRILLED, LOOKED_UP, TRAINING
from scripts.train_pair.trainer import train

FIRST = Phase("first", 900, TRAINING, matrix_lr=0.02, other_lr=3e-3, cooldown=0.4)
PHASES = (
    FIRST,
    Phase("drilled", 1000, DRILLED),  # arithmetic
    Phase("looked-up", 500, LOOKED_UP, matrix_lr=0.008),  # references further back
)


def compute_language_loss(logits: Tensor, following: Tensor) -> Tensor:
    """Cross-entropy of the next tokens that are not IGNORE. logits: (batch, width, vocab)."""
    return F.cross_entropy(logits.flatten(0, 1).float(), following.flatten(), ignore_index=IGNORE)


def create_language_model(config: ModelConfig, seed: int) -> Generator:
    """Create an untrained model in which half of the first layer's heads look one token back."""
    torch.manual_seed(seed)
    model = Generator(config)
    set_look_back(model.model.layers[0], config.heads // 2)
    return model


def create_generator(seed: int) -> Generator:
    """Create an untrained generator."""
    return create_language_model(GENERATOR, seed)


def train_generator(
    tokenizer: PreTrainedTokenizerFast, folder: Path, seed: int = 0, device: str = "cpu"
) -> Generator:
    """Train the generator phase by phase, resuming from the last checkpoint."""
    model = create_generator(seed).to(device)
    compiled = torch.compile(model, dynamic=False)
    encoder = Encoder(tokenizer)

    def compute_loss(batch: Batch) -> dict[str, Tensor]:
        return {"loss": compute_language_loss(compiled(batch.ids), batch.next)}

    for phase, run in list_runs(PHASES, "generator", folder, 0, seed, device):
        train(model, compute_loss, make_lessons(encoder, seed, phase.mix), run)
    return model
