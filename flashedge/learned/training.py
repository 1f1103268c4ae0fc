"""Trains a model of lengths in two stages: all of it, then its heads on a frozen encoder.

Ref: arXiv 2604.00499 §3.2. The paper minimizes the squared error of parameters that were fitted to
each prompt before. The usual loss here is the likelihood of the outputs themselves, which also
learns from prompts with one output, and from outputs that were cut.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flashedge.learned.encoder import SmallEncoder, build_encoder
from flashedge.learned.losses import compute_list_loss, compute_nats, compute_squares
from flashedge.learned.model import LengthModel, build_batch
from flashedge.learned.settings import (
    DISTRIBUTION,
    LIKELIHOOD,
    RANKING,
    ModelSettings,
    TrainingSettings,
)
from flashedge.learned.targets import Outputs, fit_targets, gather_outputs
from flashedge.scheduling.lengths.request import FinishedOutputs
from flashedge.types import TokenIds

POOL_BATCHES = 8
"""Batches whose prompts are sorted by length together, so that a batch has little padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One pass over the prompts."""

    stage: str
    """all, or heads."""

    number: int
    """From 1, counted through both stages."""

    train_loss: float
    validation_loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A trained model and how it got there."""

    model: LengthModel
    epochs: tuple[Epoch, ...]
    best_epoch: int
    """The epoch whose weights the model has."""


def train(
    finished: Sequence[FinishedOutputs],
    settings: ModelSettings,
    training: TrainingSettings,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> Trained:
    """Train a model. The same arguments give the same model on one machine.

    finished: at least 10 requests that the encoder can read. Raises ValueError, CheckpointError.
    """
    with torch.random.fork_rng():
        torch.manual_seed(training.seed)
        model = LengthModel(settings, build_encoder(settings.encoder))
        read = [model.encoder.read(one.request) for one in finished]
        kept = [i for i, ids in enumerate(read) if ids]
        if len(kept) < 10:
            raise ValueError(f"{len(kept)} prompts can be read; training takes at least 10")
        trainer = _Trainer(model, [finished[i] for i in kept], [read[i] for i in kept], training)
        return trainer.train(on_epoch)


class _Trainer:
    def __init__(
        self,
        model: LengthModel,
        finished: Sequence[FinishedOutputs],
        read: Sequence[TokenIds],
        training: TrainingSettings,
    ) -> None:
        self._model, self._finished, self._read = model, finished, read
        self._training = training
        self._settings = model.settings
        targets = fit_targets([one.lengths for one in finished], model.settings)
        model.standardize(targets.mean(0).tolist(), targets.std(0).tolist())
        self._targets = (targets - model.means) / model.deviations
        order = list(range(len(finished)))
        random.Random(training.seed).shuffle(order)
        held = max(2, round(training.validation_share * len(order)))
        self._validation, self._rows = order[:held], order[held:]
        self._random = random.Random(training.seed + 1)
        self._epochs: list[Epoch] = []
        self._best: tuple[float, int, dict[str, Tensor]] = (math.inf, 0, {})

    def train(self, on_epoch: Callable[[Epoch], None]) -> Trained:
        self._run_stage("all", self._training.epochs, self._list_all_parameters(), on_epoch)
        self._restore_best()
        for parameter in self._list_body():
            parameter.requires_grad_(False)
        heads = [{"params": list(self._model.heads.parameters()), "lr": self._training.head_rate}]
        self._run_stage("heads", self._training.head_epochs, heads, on_epoch)
        self._restore_best()
        if self._settings.objective == RANKING:
            self._fit_ranks()
        return Trained(
            model=self._model.eval(), epochs=tuple(self._epochs), best_epoch=self._best[1]
        )

    def _list_body(self) -> list[torch.nn.Parameter]:
        return [*self._model.encoder.parameters(), *self._model.norm.parameters()]

    def _list_all_parameters(self) -> list[dict[str, object]]:
        training = self._training
        is_small = isinstance(self._model.encoder, SmallEncoder)
        body_rate = training.learning_rate if is_small else training.encoder_rate
        return [
            {"params": self._list_body(), "lr": body_rate},
            {"params": list(self._model.heads.parameters()), "lr": training.learning_rate},
        ]

    def _run_stage(
        self,
        stage: str,
        epochs: int,
        groups: list[dict[str, object]],
        on_epoch: Callable[[Epoch], None],
    ) -> None:
        """Train for some epochs, with a rising and then a falling learning rate."""
        steps = epochs * math.ceil(len(self._rows) / self._training.batch)
        if not steps:
            return
        optimizer = torch.optim.AdamW(groups, weight_decay=self._training.weight_decay)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda at: _find_rate(at, steps))
        for _ in range(epochs):
            losses = []
            self._model.train()
            if stage == "heads":
                self._model.encoder.eval()
            for rows in self._iter_batches():
                loss = self._compute_loss(rows)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                losses.append(float(loss.detach()))
            epoch = Epoch(
                stage=stage,
                number=len(self._epochs) + 1,
                train_loss=sum(losses) / len(losses),
                validation_loss=self._validate(),
            )
            self._epochs.append(epoch)
            if epoch.validation_loss < self._best[0]:
                weights = copy.deepcopy(self._model.state_dict())
                self._best = (epoch.validation_loss, epoch.number, weights)
            on_epoch(epoch)

    def _restore_best(self) -> None:
        if self._best[2]:
            self._model.load_state_dict(self._best[2])

    @torch.inference_mode()
    def _validate(self) -> float:
        self._model.eval()
        return float(self._compute_loss(self._validation))

    def _compute_loss(self, rows: Sequence[int]) -> Tensor:
        model, settings = self._model, self._settings
        batch = build_batch(
            [self._read[i] for i in rows], [self._finished[i].request for i in rows]
        )
        scores, targets = model.apply_heads(model.pool(*batch)), self._targets[list(rows)]
        if settings.objective == RANKING:
            return compute_list_loss(scores, targets)
        if settings.objective == DISTRIBUTION and self._training.loss == LIKELIHOOD:
            return compute_nats(model.restore(scores), self._gather(rows), settings)
        return compute_squares(scores, targets)

    def _gather(self, rows: Sequence[int]) -> Outputs:
        return gather_outputs([self._finished[i].lengths for i in rows])

    def _iter_batches(self) -> Iterator[list[int]]:
        """Yield all training rows once, in batches of prompts about as long.

        A ranking is learned between the prompts of a batch, so these must be of any length.
        """
        rows, size = list(self._rows), self._training.batch
        self._random.shuffle(rows)
        if self._settings.objective == RANKING:
            yield from (rows[i : i + size] for i in range(0, len(rows), size))
            return
        for at in range(0, len(rows), POOL_BATCHES * size):
            pool = sorted(rows[at : at + POOL_BATCHES * size], key=lambda i: len(self._read[i]))
            batches = [pool[i : i + size] for i in range(0, len(pool), size)]
            self._random.shuffle(batches)
            yield from batches

    @torch.inference_mode()
    def _fit_ranks(self) -> None:
        """Let the scores of the training prompts stand for their lengths."""
        self._model.eval()
        scores: list[float] = []
        for at in range(0, len(self._rows), self._training.batch):
            rows = self._rows[at : at + self._training.batch]
            batch = build_batch(
                [self._read[i] for i in rows], [self._finished[i].request for i in rows]
            )
            scores += self._model(*batch)[:, 0].tolist()
        targets = self._targets[self._rows, 0] * self._model.deviations[0] + self._model.means[0]
        self._model.ranks.fit(scores, targets.tolist())


def _find_rate(step: int, steps: int) -> float:
    """Share of the learning rate at a step: it rises for a tenth of them, then falls to 0."""
    rising = max(1, steps // 10)
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))
