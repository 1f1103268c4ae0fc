"""The paper's text predictor: a model that reads the prompt and says mu and sigma of a log-t.

An encoder's states are pooled in three ways (the first, the mean, the maximum) and each parameter
has a head of its own. All of it is trained first, then the heads alone on the frozen encoder. The
paper minimizes the squared error of parameters that were fitted to each prompt before (FITTED). The
likelihood of the outputs themselves also learns from prompts with one output, and from outputs
that were cut. The number of the prompt's tokens is a feature, which the paper does not name.

Ref: arXiv 2604.00499 §3.2.
"""

import copy
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import special, stats
from torch import Tensor, nn

from flashedge.scheduling.lengths.distribution import NU, LogT
from flashedge.scheduling.lengths.outputs import FinishedOutputs, LengthRequest, OutputLengths
from scripts.lab.distributions import fit_log_t

LIKELIHOOD, FITTED = "likelihood", "fitted"
PADDING, CLS, FIRST_TOKEN = 0, 1, 2
"""Ids of the small encoder. Those of the generator follow."""
LOG_SCALES, LOG_TOKENS = (math.log(0.02), math.log(4.0)), (0.0, 20.0)
"""Bounds of ln sigma and of mu."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSettings:
    """A model and how it is trained."""

    checkpoint: Path | None = None
    """Folder of a pretrained encoder such as DeBERTa-v3-base. None: a small one from scratch."""

    vocabulary: int = 512
    """Tokens of the generator that the small encoder knows."""

    max_tokens: int = 256
    """Tokens of a prompt that are read: its end."""

    width: int = 128
    layers: int = 2
    attention_heads: int = 4
    head: tuple[int, ...] = (256, 256, 128)
    """Widths of the hidden layers of each head."""

    dropout: float = 0.1
    loss: str = LIKELIHOOD
    epochs: int = 15
    head_epochs: int = 15
    batch: int = 32
    rate: float = 5e-4
    encoder_rate: float = 2e-5
    """Learning rate of a pretrained encoder."""

    head_rate: float = 3e-4
    validation_share: float = 0.1
    """Share of the prompts that chooses the best epoch and is not trained on."""

    seed: int = 0


class SmallEncoder(nn.Module):
    """A transformer over the generator's own tokens."""

    def __init__(self, settings: TextSettings) -> None:
        super().__init__()
        self.width, self._settings = settings.width, settings
        self.tokens = nn.Embedding(FIRST_TOKEN + settings.vocabulary, self.width, PADDING)
        self.positions = nn.Embedding(1 + settings.max_tokens, self.width)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.02)
        layer = nn.TransformerEncoderLayer(
            self.width,
            settings.attention_heads,
            dim_feedforward=2 * self.width,
            dropout=settings.dropout,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        norm = nn.LayerNorm(self.width)
        self.layers = nn.TransformerEncoder(
            layer, settings.layers, norm, enable_nested_tensor=False
        )

    def read(self, request: LengthRequest) -> list[int]:
        kept = request.prompt_ids[-self._settings.max_tokens :]
        return [CLS, *(FIRST_TOKEN + token % self._settings.vocabulary for token in kept)]

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        states = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        found: Tensor = self.layers(states, src_key_padding_mask=~mask)
        return found


class CheckpointEncoder(nn.Module):
    """A pretrained encoder with its own tokenizer. Ref: DeBERTa-v3, arXiv 2111.09543."""

    def __init__(self, settings: TextSettings) -> None:
        super().__init__()
        from transformers import AutoModel, AutoTokenizer

        folder = settings.checkpoint
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.model: Any = AutoModel.from_pretrained(
            folder, local_files_only=True, dtype=torch.float32
        )
        self.width = int(self.model.config.hidden_size)
        self._max_tokens = min(settings.max_tokens, self.model.config.max_position_embeddings)

    def read(self, request: LengthRequest) -> list[int]:
        encoded = self.tokenizer(request.text, truncation=True, max_length=self._max_tokens)
        return list(encoded["input_ids"])

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        found: Tensor = self.model(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        return found


class TextModel(nn.Module):
    """Maps prompts to mu and ln sigma of their outputs' lengths."""

    def __init__(self, settings: TextSettings) -> None:
        super().__init__()
        kind = SmallEncoder if settings.checkpoint is None else CheckpointEncoder
        self.encoder = kind(settings)
        self.norm = nn.LayerNorm(3 * self.encoder.width)
        self.heads = nn.ModuleList(_build_head(3 * self.encoder.width + 1, settings) for _ in "ms")
        self.scale = nn.Parameter(torch.tensor([[5.0, -1.5], [1.0, 1.0]]), requires_grad=False)
        """Means and standard deviations of the parameters, which the heads predict as z-scores."""

    def forward(self, requests: Sequence[LengthRequest]) -> Tensor:
        """(batch, 2) z-scores of mu and ln sigma."""
        read = [torch.tensor(self.encoder.read(request)) for request in requests]
        ids = nn.utils.rnn.pad_sequence(read, batch_first=True, padding_value=PADDING)
        mask = torch.arange(ids.shape[1])[None] < torch.tensor([len(one) for one in read])[:, None]
        states, there = self.encoder(ids, mask), mask[..., None]
        mean = (states * there).sum(1) / there.sum(1)
        largest = states.masked_fill(~there, float("-inf")).amax(1)
        tokens = torch.tensor([[float(request.num_prompt_tokens)] for request in requests])
        pooled = self.norm(torch.cat([states[:, 0], mean, largest], dim=-1))
        fused = torch.cat([pooled, tokens.clamp(min=1).log() - 5], dim=-1)
        return torch.cat([head(fused) for head in self.heads], dim=-1)

    def restore(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """mu and ln sigma, within their bounds: (batch,) each."""
        values = scores * self.scale[1] + self.scale[0]
        return values[:, 0].clamp(*LOG_TOKENS), values[:, 1].clamp(*LOG_SCALES)

    @torch.inference_mode()
    def predict(self, request: LengthRequest) -> LogT:
        self.eval()
        mu, log_sigma = self.restore(self([request]))
        return LogT(float(mu), math.exp(float(log_sigma)))


def _build_head(width: int, settings: TextSettings) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size in settings.head:
        layers += [nn.Linear(width, size), nn.GELU(), nn.Dropout(settings.dropout)]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, 1))


class LogSurvival(torch.autograd.Function):
    """ln P(T > z) of Student's t-distribution by SciPy, in fp64: PyTorch lacks it."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        return torch.from_numpy(np.log(special.stdtr(NU, -z.detach().double().numpy()))).to(z)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (z,) = ctx.saved_tensors
        at = z.detach().double().numpy()
        hazard = stats.t.pdf(at, NU) / special.stdtr(NU, -at)
        return -grads[0] * torch.from_numpy(hazard).to(z)


def compute_nats(mu: Tensor, log_sigma: Tensor, lengths: Sequence[OutputLengths]) -> Tensor:
    """Negative log-likelihood of the logarithm of one output, the mean over the prompts.

    mu, log_sigma: (batch,). A censored output counts as longer.
    """
    points = [
        (at, math.log(tokens), cut, weight / one.num_outputs)
        for at, one in enumerate(lengths)
        for tokens, cut, weight in zip(one.tokens, one.is_censored, one.weights, strict=True)
    ]
    at, logs, is_cut, weights = map(torch.tensor, zip(*points, strict=True))
    z, cut = (logs - mu[at]) / log_sigma[at].exp(), is_cut.bool()
    student: Any = torch.distributions.StudentT(NU)
    found = torch.zeros_like(z).masked_scatter(
        ~cut, student.log_prob(z[~cut]) - log_sigma[at][~cut]
    )
    survival: Tensor = LogSurvival.apply(z[cut])  # type: ignore[no-untyped-call]
    return -(found.masked_scatter(cut, survival) * weights).sum() / len(lengths)


def fit_targets(finished: Sequence[FinishedOutputs]) -> Tensor:
    """Fit mu and ln sigma of each prompt's outputs: (prompts, 2)."""
    fits = []
    for one in finished:
        counted = np.array(one.lengths.weights) > 0  # where paths part the weight is negative
        tokens, cut = np.array(one.lengths.tokens), np.array(one.lengths.is_censored)
        fits.append(fit_log_t(tokens[counted], cut[counted]))
    return torch.tensor([(one.mu, math.log(one.sigma)) for one in fits])


def train(
    finished: Sequence[FinishedOutputs],
    settings: TextSettings,
    note: Callable[[str], None] = lambda line: None,
) -> TextModel:
    """Train a model. The same arguments give the same model on one machine."""
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        model, targets = TextModel(settings), fit_targets(finished)
        model.scale.data = torch.stack([targets.mean(0), targets.std(0).clamp(min=1e-3)])
        order = list(range(len(finished)))
        shuffle = random.Random(settings.seed).shuffle
        shuffle(order)
        held = max(2, round(settings.validation_share * len(order)))
        validation, rows = order[:held], order[held:]
        best = math.inf, model.state_dict()

        def compute_loss(rows: Sequence[int]) -> Tensor:
            scores = model([finished[i].request for i in rows])
            if settings.loss == FITTED:
                wanted = (targets[list(rows)] - model.scale[0]) / model.scale[1]
                return nn.functional.mse_loss(scores, wanted)
            return compute_nats(*model.restore(scores), [finished[i].lengths for i in rows])

        def run_stage(epochs: int, groups: list[dict[str, Any]]) -> None:
            nonlocal best
            steps = epochs * math.ceil(len(rows) / settings.batch)
            optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
            rates = [float(group["lr"]) for group in groups]
            schedule = torch.optim.lr_scheduler.OneCycleLR(
                optimizer, rates, total_steps=max(steps, 2), pct_start=0.1
            )
            for epoch in range(epochs):
                model.train()
                shuffle(rows)
                for at in range(0, len(rows), settings.batch):
                    optimizer.zero_grad()
                    loss = compute_loss(rows[at : at + settings.batch])
                    loss.backward()  # type: ignore[no-untyped-call]
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    schedule.step()
                model.eval()
                with torch.inference_mode():
                    found = float(compute_loss(validation))
                note(f"epoch {epoch}: {found:.3f}")
                if found < best[0]:
                    best = found, copy.deepcopy(model.state_dict())
            model.load_state_dict(best[1])

        body = [*model.encoder.parameters(), *model.norm.parameters()]
        heads = list(model.heads.parameters())
        rate = settings.rate if settings.checkpoint is None else settings.encoder_rate
        run_stage(
            settings.epochs, [{"params": body, "lr": rate}, {"params": heads, "lr": settings.rate}]
        )
        for parameter in body:
            parameter.requires_grad_(False)
        run_stage(settings.head_epochs, [{"params": heads, "lr": settings.head_rate}])
        return model.eval()
