"""Train the generator on right solutions. It is kept small and stopped early, so that it errs now
and then.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast

from scripts.train_pair.batches import IGNORE, Batch, Encoder, solutions
from scripts.train_pair.model import GENERATOR, Generator, look_back
from scripts.train_pair.problems import TRAINING
from scripts.train_pair.trainer import Run, train


def language_loss(logits: Tensor, following: Tensor) -> Tensor:
    """Cross-entropy of the next token where it may be asked. logits: (batch, width, vocab)."""
    return F.cross_entropy(logits.flatten(0, 1).float(), following.flatten(), ignore_index=IGNORE)


def new_generator(seed: int) -> Generator:
    """An untrained generator; half of the first layer's heads look at the previous token."""
    torch.manual_seed(seed)
    model = Generator(GENERATOR)
    look_back(model.model.layers[0], GENERATOR.heads // 2)
    return model


def train_generator(
    tokenizer: PreTrainedTokenizerFast, folder: Path, steps: int, seed: int = 0, device: str = "cpu"
) -> Generator:
    """Train (or resume) and return the generator."""
    model = new_generator(seed).to(device)
    compiled = torch.compile(model, dynamic=False)

    def loss_of(batch: Batch) -> dict[str, Tensor]:
        return {"loss": language_loss(compiled(batch.ids), batch.next)}

    run = Run(
        name="generator",
        folder=folder,
        steps=steps,
        seed=seed,
        first_index=seed * 50_000_000,
        device=device,
    )
    train(model, loss_of, solutions(Encoder(tokenizer), seed, TRAINING), run)
    return model
