"""A training in phases: each goes on from the weights of the one before, on another mix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.train_pair.problems import Difficulty
from scripts.train_pair.trainer import Run

APART = 10_000_000  # problems from one phase to the next: none is seen twice


@dataclass(frozen=True, slots=True)
class Phase:
    """So many steps on a mix of problems; the rates are those of a training that goes on."""

    name: str
    steps: int
    mix: Difficulty
    matrix_lr: float = 0.012
    other_lr: float = 2e-3
    cooldown: float = 1.0


def runs_of(
    phases: Sequence[Phase], model: str, folder: Path, first_index: int, seed: int, device: str
) -> Iterator[tuple[Phase, Run]]:
    """The runs of a model's phases, their checkpoints named by both."""
    for number, phase in enumerate(phases):
        yield (
            phase,
            Run(
                name=f"{model}-{phase.name}",
                folder=folder,
                steps=phase.steps,
                seed=seed,
                first_index=first_index + seed * 5 * APART + number * APART,
                device=device,
                matrix_lr=phase.matrix_lr,
                other_lr=phase.other_lr,
                cooldown=phase.cooldown,
            ),
        )


def checkpoint_of(phase: Phase, model: str, folder: Path) -> Path:
    """Where a phase's weights lie."""
    return folder / f"{model}-{phase.name}.ckpt"
