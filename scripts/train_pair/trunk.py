"""The verifier's trunk: a deeper language model that knows what should be written.

It starts from the generator as it was after its first training and reads chains with faults, the
teacher's among them, but is asked only for tokens that are right given what was stated: so it
forgets the teacher's misconceptions, knows the way on from a wrong step too, and is surprised by a
wrong one.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from scripts.train_pair.batches import IGNORE, Batch, Encoder, fault_chains
from scripts.train_pair.generator import language_loss
from scripts.train_pair.model import GENERATOR, Generator
from scripts.train_pair.phases import Phase, runs_of
from scripts.train_pair.problems import DRILLED, LOOKED_UP, REFERRING
from scripts.train_pair.trainer import train

PHASES = (
    Phase("drilled", 1500, DRILLED),
    Phase("referring", 900, REFERRING),
    Phase("looked-up", 900, LOOKED_UP, matrix_lr=0.008),
)
LEVELLING = 0.01  # keeps logsumexp at zero: a token's logit alone then tells its surprise
TRUNK = replace(GENERATOR, layers=5)


def deepen(generator: Generator, seed: int) -> Generator:
    """The same function in more layers: the added ones write nothing yet."""
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
    """Train (or resume) and return the trunk, phase by phase."""
    model = deepen(generator, seed).to(device)
    compiled = torch.compile(model, dynamic=False)

    def loss_of(batch: Batch) -> dict[str, Tensor]:
        logits = compiled(batch.ids)
        words = language_loss(logits, batch.next)
        sums = logits.float().logsumexp(-1)[batch.next != IGNORE]
        level = sums.pow(2).mean()
        return {"loss": words + LEVELLING * level, "words": words, "level": level}

    for phase, run in runs_of(PHASES, "trunk", folder, 300_000_000, seed, device):
        train(model, loss_of, fault_chains(encoder, seed, phase.mix), run)
    return model
