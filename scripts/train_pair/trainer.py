"""The training loop that both models share: schedule, checkpoints, log, progress."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from flashedge.cli.progress import show_bar
from scripts.train_pair.batches import Batch, Row, make_batches
from scripts.train_pair.optimizer import make_optimizers

Loss = Callable[[Batch], dict[str, Tensor]]


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
    batches: Iterator[Batch] = make_batches(
        make_row, run.first_index, run.tokens_per_step, random.Random(run.seed)
    )
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
    with torch.autocast(batch.ids.device.type, torch.bfloat16):
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
