"""The training loop that both models share: schedule, checkpoints, log, progress."""

import itertools
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from flashedge.cli.progress import show_bar
from scripts.train_pair.batches import Batch, Row, make_batches
from scripts.train_pair.optimizer import make_optimizers

Loss = Callable[[Batch], dict[str, Tensor]]
AHEAD = 8  # batches that each process has ready


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training run. The learning rate warms up, stays flat, then falls linearly."""

    name: str
    folder: Path
    """Where the checkpoint and the log are written."""

    steps: int
    tokens_per_step: int = 8192

    matrix_lr: float = 0.02
    """Learning rate of the matrices (Muon)."""

    other_lr: float = 3e-3
    """Learning rate of all other weights (AdamW)."""

    warmup: int = 40
    """Steps over which the learning rate rises."""

    cooldown: float = 0.4
    """Share of the steps over which the learning rate falls."""

    seed: int = 0
    first_index: int = 0
    """Index of the first training row."""

    save_every: int = 200
    log_every: int = 20
    device: str = "cpu"
    processes: int = 0
    """Processes that make the batches. None: this one. Their number changes which rows meet."""


class Batches(IterableDataset[Batch]):
    """The batches of a run. Of several processes, each makes every so many rows."""

    def __init__(self, make_row: Callable[[int], Row], run: Run) -> None:
        self._make_row = make_row
        self._run = run

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        number, count = (info.id, info.num_workers) if info else (0, 1)
        rng = random.Random(f"{self._run.seed}-{number}" if info else self._run.seed)
        rows = itertools.count(self._run.first_index + number, count)
        return make_batches(self._make_row, rows, self._run.tokens_per_step, rng)


def compile_for(model: nn.Module, device: str) -> nn.Module:
    """Compile a model for the CPU. On a card that takes longer than the training."""
    return cast(nn.Module, torch.compile(model, dynamic=False)) if device == "cpu" else model


def scale_rate(run: Run, step: int) -> float:
    """Return the factor on the learning rates at a step."""
    fall = max(1, int(run.steps * run.cooldown))
    return min(1.0, (step + 1) / run.warmup, max(0.02, (run.steps - step) / fall))


def move_batch(batch: Batch, device: str) -> Batch:
    """Copy the batch to the training device."""
    return Batch(*(getattr(batch, name).to(device) for name in ("ids", "next", "right", "step")))


def train(model: nn.Module, compute_loss: Loss, make_row: Callable[[int], Row], run: Run) -> None:
    """Train the model in place, resuming from the run's last checkpoint.

    compute_loss: returns the parts of the loss by name; `loss` is their sum.
    """
    run.folder.mkdir(parents=True, exist_ok=True)
    checkpoint, log = run.folder / f"{run.name}.ckpt", run.folder / f"{run.name}.jsonl"
    optimizers = make_optimizers(model, run.matrix_lr, run.other_lr)
    bases = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
    start = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True, map_location=run.device)
        model.load_state_dict(saved["model"])
        for optimizer, state in zip(optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        start = saved["step"]
    loader = DataLoader(
        Batches(make_row, run),
        batch_size=None,
        num_workers=run.processes,
        prefetch_factor=AHEAD if run.processes else None,
        multiprocessing_context="fork" if run.processes else None,
    )
    batches = iter(loader)
    for _ in range(start):
        next(batches)
    model.train()
    began, seen, sums = time.monotonic(), 0, dict[str, float]()
    with show_bar(run.name, run.steps, done=start, unit="steps") as advance:
        for step in range(start, run.steps):
            batch = move_batch(next(batches), run.device)
            for optimizer, base in zip(optimizers, bases, strict=True):
                for group, lr in zip(optimizer.param_groups, base, strict=True):
                    group["lr"] = lr * scale_rate(run, step)
            for name, value in learn(model, compute_loss, batch, optimizers).items():
                sums[name] = sums.get(name, 0.0) + value
            seen += batch.ids.numel()
            advance(1)
            if (step + 1) % run.log_every == 0:
                speed = seen / (time.monotonic() - began)
                row: dict[str, float] = {"step": step + 1, "tokens_per_s": round(speed)}
                row |= {name: round(value / run.log_every, 4) for name, value in sums.items()}
                with log.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                sums.clear()
            if (step + 1) % run.save_every == 0 or step + 1 == run.steps:
                save(checkpoint, model, optimizers, step + 1)


def learn(
    model: nn.Module, compute_loss: Loss, batch: Batch, optimizers: Sequence[torch.optim.Optimizer]
) -> dict[str, float]:
    """Make one update and return the parts of its loss."""
    with torch.autocast("cuda", torch.bfloat16, enabled=batch.ids.is_cuda):
        parts = compute_loss(batch)
    parts["loss"].backward()  # type: ignore[no-untyped-call]  # torch has no hint here
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
    model.zero_grad(set_to_none=True)
    return {name: float(value.detach()) for name, value in parts.items()}


def save(
    path: Path, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], step: int
) -> None:
    """Write a checkpoint. An interrupted call leaves the one before it intact."""
    states = [optimizer.state_dict() for optimizer in optimizers]
    torch.save(
        {"model": model.state_dict(), "optimizers": states, "step": step}, path.with_suffix(".tmp")
    )
    path.with_suffix(".tmp").replace(path)
