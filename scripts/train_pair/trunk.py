"""The verifier's trunk: a deeper language model that predicts the right next token.

It starts from the generator's first training phase and reads chains with faults, the teacher's
among them. Its loss covers only the tokens that are right given what was stated before. So it
forgets the teacher's misconceptions, learns to continue after a wrong step, and gives a wrong token
a low probability.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from scripts.train_pair.batches import IGNORE, Batch, Encoder, make_fault_chains
from scripts.train_pair.generator import compute_language_loss
from scripts.train_pair.model import GENERATOR, Generator
from scripts.train_pair.phases import Phase, list_runs
from scripts.train_pair.problems import DRILLED, LOOKED_UP, REFERRING
from scripts.train_pair.trainer import train

PHASES = (
    Phase("drilled", 1500, DRILLED),
    Phase("referring", 900, REFERRING),
    Phase("looked-up", 900, LOOKED_UP, matrix_lr=0.008),
)
LEVELLING = 0.01  # holds logsumexp at zero, so that a token's logit is its log-probability
TRUNK = replace(GENERATOR, layers=5)


def compute_trunk_loss(logits: Tensor, following: Tensor) -> dict[str, Tensor]:
    """The loss of the next tokens that are not IGNORE, and what holds logsumexp at zero there.

    logits: (batch, width, vocab); following: (batch, width).
    """
    words = compute_language_loss(logits, following)
    level = logits.float().logsumexp(-1)[following != IGNORE].pow(2).mean()
    return {"loss": words + LEVELLING * level, "words": words, "level": level}


def deepen(generator: Generator, seed: int) -> Generator:
    """Add layers that write nothing yet, so that the model computes the same function."""
    torch.manual_seed(seed + 2)
    trunk = Generator(TRUNK)
    for layer in trunk.model.layers[GENERATOR.layers :]:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    trunk.load_state_dict(generator.state_dict(), strict=False)
    return trunk


def train_trunk(
    generator: Generator, encoder: Encoder, folder: Path, seed: int = 0, device: str = "cpu"
) -> Generator:
    """Train the trunk phase by phase, resuming from the last checkpoint."""
    model = deepen(generator, seed).to(device)
    compiled = torch.compile(model, dynamic=False)

    def compute_loss(batch: Batch) -> dict[str, Tensor]:
        return compute_trunk_loss(compiled(batch.ids), batch.next)

    for phase, run in list_runs(PHASES, "trunk", folder, 300_000_000, seed, device):
        train(model, compute_loss, make_fault_chains(encoder, seed, phase.mix), run)
    return model
