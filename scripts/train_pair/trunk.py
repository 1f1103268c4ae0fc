"""The verifier's trunk: the generator made deeper and trained on, as a language model, far past it.

A verifier has to know what should have been written. The trunk is trained on chains with faults
(asked only for tokens that are right given what was stated), so that it knows the way on from a
wrong step too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from scripts.train_pair.batches import Batch, Row
from scripts.train_pair.generator import language_loss
from scripts.train_pair.model import GENERATOR, Generator
from scripts.train_pair.trainer import Run, train

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
    generator: Generator,
    make_row: Callable[[int], Row],
    folder: Path,
    steps: int,
    seed: int = 0,
    device: str = "cpu",
) -> Generator:
    """Train (or resume) and return the trunk."""
    model = deepen(generator, seed).to(device)
    compiled = torch.compile(model, dynamic=False)

    def loss_of(batch: Batch) -> dict[str, Tensor]:
        return {"loss": language_loss(compiled(batch.ids), batch.next)}

    run = Run(
        name="trunk",
        folder=folder,
        steps=steps,
        seed=seed,
        first_index=100_000_000 + seed * 10_000_000,
        device=device,
    )
    train(model, loss_of, make_row, run)
    return model
