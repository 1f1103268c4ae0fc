"""Training in phases: each continues from the weights of the one before, on another mix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.train_pair.problems import Difficulty
from scripts.train_pair.trainer import Run

APART = 10_000_000  # distance between the first problems of two phases, so that none repeats


@dataclass(frozen=True, slots=True)
class Phase:
    """Steps on one mix of problems. The default rates suit a training that continues."""

    name: str
    steps: int
    mix: Difficulty
    matrix_lr: float = 0.012
    other_lr: float = 2e-3
    cooldown: float = 1.0


def list_runs(
    phases: Sequence[Phase], model: str, folder: Path, first_index: int, seed: int, device: str
) -> Iterator[tuple[Phase, Run]]:
    """List a model's phases with their runs. Checkpoints are named by model and phase."""
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


def locate_checkpoint(phase: Phase, model: str, folder: Path) -> Path:
    """Return the path of a phase's checkpoint."""
    return folder / f"{model}-{phase.name}.ckpt"
