"""Trains a reward model by the clock, with a checkpoint, so that several calls make one training.

The loss of a batch has two parts, since the verifier has two uses:

- cross entropy of every step, whose label is whether its path ends right. A path counts once,
  however many steps it has. It makes scores probabilities, which early exits compare with bounds.
- over pairs of a right and a wrong solution of one problem, -log sigmoid of the difference of their
  last log-odds. It makes scores rank the solutions of a problem, which all that a vote, best-of-n
  or a beam asks. How hard the problem is cancels out, so the model can't learn that instead.

Only problems with solutions of both kinds are learnt from: others give no pair, and tell the first
part little but which problems are easy. What that does to the probabilities is undone at the end by
`calibrate`, on problems of all kinds that were not trained on.
"""

import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scripts.train_prm.model import RewardModel
from scripts.train_prm.samples import Row

RATE = 3e-4
"""Of AdamW, for the changes and for the head."""
WARM_UP = 20
"""Updates until the rate is reached. From there it falls as a cosine over the time."""
RIDGE, LEAST_SLOPE = 1e-3, 0.01
"""Of the calibration. A slope that is not positive would turn the order of scores round."""
SAVE_S = 60.0
PART = 2
"""Problems of a batch that go forward and back together, so that memory does not grow with it."""
LOG_STEPS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long to train, and on how much at once."""

    seconds: float
    """Of training in all, over all calls."""
    epochs: int
    """The training ends after so many, if its time has not ended before."""
    problems: int
    """Problems of a batch."""
    seed: int
    until: float
    """By `time.monotonic`, when this call stops, whether the training has ended or not."""


def train(
    model: RewardModel, problems: Sequence[Sequence[Row]], plan: Plan, work: Path
) -> dict[str, float] | None:
    """Train the model in place, from the checkpoint in `work` if there is one. Returns what was
    done, or None if the call's time is up: the next call goes on from there.

    problems: the rows of each, some right and some wrong.
    """
    checkpoint, trained = work / "train.ckpt", model.list_trained()
    optimizer = torch.optim.AdamW(trained.values(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    step, spent_s, tokens = 0, 0.0, 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True, map_location="cpu")
        model.load_state_dict(saved["weights"], strict=False)
        optimizer.load_state_dict(saved["optimizer"])
        step, spent_s, tokens = saved["step"], saved["spent_s"], saved["tokens"]
    steps = plan.epochs * -(-len(problems) // plan.problems)
    began = time.monotonic() - spent_s
    last_save, sums = time.monotonic(), dict[str, float]()

    def save() -> None:
        weights = {name: p.detach() for name, p in trained.items()}
        state: dict[str, Any] = {"weights": weights, "optimizer": optimizer.state_dict()}
        state |= {"step": step, "spent_s": spent_s, "tokens": tokens}
        torch.save(state, checkpoint.with_suffix(".new"))
        checkpoint.with_suffix(".new").replace(checkpoint)

    model.train()
    while step < steps and spent_s < plan.seconds:
        if time.monotonic() >= plan.until:
            save()
            return None
        progress = max(step / steps, spent_s / plan.seconds)
        for group in optimizer.param_groups:
            warm = min(1.0, (step + 1) / WARM_UP)
            group["lr"] = RATE * warm * (0.5 + 0.5 * math.cos(math.pi * progress))
        batch = choose_batch(problems, step, plan)
        losses = add_gradients(model, batch)
        nn.utils.clip_grad_norm_(trained.values(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        tokens += sum(len(row.ids) for rows in batch for row in rows)
        for name, value in losses.items():
            sums[name] = sums.get(name, 0.0) + value
        spent_s = time.monotonic() - began
        if step % LOG_STEPS == 0:
            line = {"step": step, "of": steps, "seconds": round(spent_s, 1), "tokens": tokens}
            line |= {name: round(value / LOG_STEPS, 4) for name, value in sums.items()}
            sums.clear()
            with (work / "train.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)
        if time.monotonic() > last_save + SAVE_S:
            save()
            last_save = time.monotonic()
    save()
    epochs = plan.epochs * step / steps
    return {"steps": step, "seconds": spent_s, "tokens": tokens, "epochs": epochs}


def probe_speed(model: RewardModel, rows: Sequence[Row]) -> None:
    """Go forward and back twice, and print the second one's attention kernel and speed. Whoever
    waits sees at once if PyTorch took a slow one."""
    add_gradients(model, [rows])
    began = time.monotonic()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        add_gradients(model, [rows])
    rate = sum(len(row.ids) for row in rows) / (time.monotonic() - began)
    kernels = {event.key for event in seen.key_averages() if "_attention" in event.key}
    print(json.dumps({"kernels": sorted(kernels), "tokens_per_s": round(rate)}), flush=True)
    model.zero_grad(set_to_none=True)


def choose_batch(problems: Sequence[Sequence[Row]], step: int, plan: Plan) -> list[Sequence[Row]]:
    """The problems of an update: each epoch has all of them in another order."""
    per_epoch = -(-len(problems) // plan.problems)
    order = list(range(len(problems)))
    random.Random(f"{plan.seed} {step // per_epoch}").shuffle(order)
    first = step % per_epoch * plan.problems
    return [problems[i] for i in order[first : first + plan.problems]]


def add_gradients(model: RewardModel, batch: Sequence[Sequence[Row]]) -> dict[str, float]:
    """Add the gradients of a batch's loss, and return its parts. Problems of like length go through
    the model together: a part counts by its rows in the first loss, by its problems in the other.
    """
    batch = sorted(batch, key=lambda some: max(len(row.ids) for row in some))
    rows, found = sum(map(len, batch)), {"step_loss": 0.0, "pair_loss": 0.0}
    for first in range(0, len(batch), PART):
        part = batch[first : first + PART]
        losses = compute_losses(model, part)
        losses["step_loss"] = losses["step_loss"] * (sum(map(len, part)) / rows)
        losses["pair_loss"] = losses["pair_loss"] * (len(part) / len(batch))
        (losses["step_loss"] + losses["pair_loss"]).backward()  # type: ignore[no-untyped-call]
        for name, value in losses.items():
            found[name] += value.item()
    return found


def compute_losses(model: RewardModel, batch: Sequence[Sequence[Row]]) -> dict[str, Tensor]:
    """The two parts of the loss. batch: the rows of each problem, some right and some wrong."""
    rows = [row for some in batch for row in some]
    odds = model.compute_log_odds(rows)
    steps = torch.stack(
        [
            F.binary_cross_entropy_with_logits(o, torch.full_like(o, float(row.right)))
            for o, row in zip(odds, rows, strict=True)
        ]
    )
    last, pairs, first = torch.stack([o[-1] for o in odds]), [], 0
    for some in batch:
        right = torch.tensor([row.right for row in some], device=last.device)
        here = last[first : first + len(some)]
        pairs.append(F.softplus(here[~right][None] - here[right][:, None]).mean())
        first += len(some)
    return {"step_loss": steps.mean(), "pair_loss": torch.stack(pairs).mean()}


@torch.no_grad()
def calibrate(model: RewardModel, problems: Sequence[Sequence[Row]]) -> tuple[float, float]:
    """Fit the slope and the offset by which the log-odds of `problems` say the truth most exactly,
    put them into the head, and return them. The order of scores stays. Rows have a step at least.
    Ref: Platt, 1999."""
    model.eval()
    odds: list[float] = []
    right: list[float] = []
    shares: list[float] = []
    for rows in problems:
        for row, steps in zip(rows, model.compute_log_odds(rows), strict=True):
            odds += steps.tolist()
            right += [float(row.right)] * len(steps)
            shares += [1 / len(steps)] * len(steps)
    x, y = torch.tensor(odds).double(), torch.tensor(right).double()
    share = torch.tensor(shares).double() / sum(shares)
    middle, spread = x.mean(), x.std().clamp_min(1e-6)
    x = torch.stack([(x - middle) / spread, torch.ones_like(x)], dim=1)
    fit = torch.zeros(2, dtype=torch.double)
    for _ in range(30):  # Newton's method; the small ridge keeps the slope finite
        said = (x @ fit).sigmoid()
        gradient = x.T @ (share * (said - y)) + RIDGE * fit
        curvature = x.T @ (x * (share * said * (1 - said))[:, None])
        fit = fit - torch.linalg.solve(curvature + RIDGE * torch.eye(2), gradient)
    slope = float(fit[0].clamp_min(LEAST_SLOPE) / spread)
    offset = float(fit[1]) - slope * float(middle)
    model.rescale(slope, offset)
    return slope, offset
