"""Models that read a prompt and say how long its answers get: the paper's, and its rivals'.

An encoder makes a vector of the prompt, and heads make figures of the vector. The small encoder is
trained from scratch: a transformer over the tokens, whose states are pooled in three ways (the
first, the mean, the maximum). The other one is frozen: it takes the states of a pretrained language
model, and only the heads learn.

| loss | what is learned of a prompt's answers |
|---|---|
| likelihood | mu and ln sigma, by the likelihood of all answers. A cut one counts as longer |
| fitted | the paper's: mu and ln sigma of a fit to all answers, by the squared error |
| point | the tokens of one answer, by the squared error: SSJF |
| log | their logarithm, by the squared error |
| mean | the mean tokens of all answers, by the squared error |
| rank | a score that orders one answer of each prompt of a batch, by ListMLE: LTR |

All of it is trained first, then the heads alone. The number of the prompt's tokens is a feature,
which the paper does not name.

Ref: arXiv 2604.00499 §3.2, App. C.1.
"""

import copy
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special, stats
from torch import Tensor, nn

from flashedge.scheduling.lengths.distribution import NU
from scripts.bench.lengths.samples import Samples, list_parameters

LIKELIHOOD, FITTED, POINT, RANK, LOG, MEAN = LOSSES = (
    *("likelihood", "fitted", "point", "rank", "log", "mean"),
)
DISTRIBUTIONS = (LIKELIHOOD, FITTED)
"""The losses that teach mu and ln sigma. The others teach one figure."""
PADDING, CLS, FIRST_TOKEN = 0, 1, 2
"""Ids of the small encoder. Those of the tokenizer follow."""
LOG_SCALES, LOG_TOKENS = (math.log(0.02), math.log(4.0)), (0.0, 20.0)
"""Bounds of ln sigma and of mu."""
Vectors = Mapping[str, Tensor]
"""What the frozen encoder makes of each text: (width,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSettings:
    """A model and how it is trained."""

    loss: str = LIKELIHOOD
    vocabulary: int = 4_096
    """Tokens that the small encoder tells apart."""
    max_tokens: int = 256
    """Tokens of a prompt that are read: its end."""
    width: int = 128
    layers: int = 2
    attention_heads: int = 4
    head: tuple[int, ...] = (256, 256, 128)
    """Widths of the hidden layers of each head."""
    dropout: float = 0.1
    epochs: int = 8
    head_epochs: int = 4
    batch: int = 32
    rate: float = 5e-4
    head_rate: float = 3e-4
    validation_share: float = 0.1
    """Share of the prompts that chooses the best epoch and is not trained on."""
    seed: int = 0


class SmallEncoder(nn.Module):
    """A transformer over the prompt's tokens."""

    def __init__(self, settings: TextSettings) -> None:
        super().__init__()
        self._settings, self.width = settings, 3 * settings.width
        self.tokens = nn.Embedding(FIRST_TOKEN + settings.vocabulary, settings.width, PADDING)
        self.positions = nn.Embedding(1 + settings.max_tokens, settings.width)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.02)
        layer = nn.TransformerEncoderLayer(
            settings.width,
            settings.attention_heads,
            dim_feedforward=2 * settings.width,
            dropout=settings.dropout,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        norm = nn.LayerNorm(settings.width)
        self.layers = nn.TransformerEncoder(
            layer, settings.layers, norm, enable_nested_tensor=False
        )

    def forward(self, samples: Sequence[Samples]) -> Tensor:
        """(batch, width)."""
        known, most = self._settings.vocabulary, self._settings.max_tokens
        read = [
            torch.tensor([CLS, *(FIRST_TOKEN + token % known for token in one.prompt_ids[-most:])])
            for one in samples
        ]
        ids = nn.utils.rnn.pad_sequence(read, batch_first=True, padding_value=PADDING)
        mask = torch.arange(ids.shape[1])[None] < torch.tensor([len(one) for one in read])[:, None]
        embedded = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        states, there = self.layers(embedded, src_key_padding_mask=~mask), mask[..., None]
        average = (states * there).sum(1) / there.sum(1)
        largest = states.masked_fill(~there, float("-inf")).amax(1)
        return torch.cat([states[:, 0], average, largest], dim=-1)


class FrozenEncoder(nn.Module):
    """Looks up what `read_vectors` has made of the texts."""

    def __init__(self, vectors: Vectors) -> None:
        super().__init__()
        self._vectors = vectors
        self.width = len(next(iter(vectors.values())))

    def forward(self, samples: Sequence[Samples]) -> Tensor:
        return torch.stack([self._vectors[one.text] for one in samples])


def read_vectors(
    folder: Path, texts: Sequence[str], most: int = 256, batch: int = 16
) -> NDArray[np.float32]:
    """The states of a pretrained model after half of its layers, at the last token and on average
    over the last `most` of each text: (texts, width)."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model: Any = AutoModel.from_pretrained(folder, local_files_only=True, dtype=torch.bfloat16)
    model.layers, model.norm = model.layers[: len(model.layers) // 2], nn.Identity()
    ids = [torch.tensor(tokenizer(text)["input_ids"][-most:]) for text in texts]
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))  # little padding
    found: dict[int, Tensor] = {}
    with torch.inference_mode():
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            padded = nn.utils.rnn.pad_sequence([ids[i] for i in rows], batch_first=True)
            # A state depends on the tokens before it alone, so padding at the end changes none.
            states = model(input_ids=padded, use_cache=False).last_hidden_state.float()
            for row, i in enumerate(rows):
                own = states[row, : len(ids[i])]
                found[i] = torch.cat([own[-1], own.mean(0)])
    return np.asarray(torch.stack([found[i] for i in range(len(texts))]).numpy())


class TextModel(nn.Module):
    """Maps prompts to mu and ln sigma of their answers' lengths, or to one figure."""

    def __init__(self, settings: TextSettings, vectors: Vectors | None = None) -> None:
        super().__init__()
        self.loss = settings.loss
        self.encoder = SmallEncoder(settings) if vectors is None else FrozenEncoder(vectors)
        self.norm = nn.LayerNorm(self.encoder.width)
        figures = 2 if self.loss in DISTRIBUTIONS else 1
        self.heads = nn.ModuleList(
            _build_head(self.encoder.width + 1, settings) for _ in range(figures)
        )
        self.scale = nn.Parameter(torch.ones(2, figures), requires_grad=False)
        """Means and standard deviations of the figures, which the heads predict as z-scores."""

    def forward(self, samples: Sequence[Samples]) -> Tensor:
        """(batch, figures) z-scores."""
        tokens = torch.tensor([[float(len(one.prompt_ids))] for one in samples])
        length = tokens.clamp(min=1).log() - 5
        fused = torch.cat([self.norm(self.encoder(samples)), length], dim=-1)
        return torch.cat([head(fused) for head in self.heads], dim=-1)

    def restore(self, scores: Tensor) -> Tensor:
        """The figures themselves. mu and ln sigma stay within their bounds."""
        values = scores * self.scale[1] + self.scale[0]
        if len(self.heads) == 1:
            return values
        bounds = torch.tensor([LOG_TOKENS, LOG_SCALES])
        return torch.minimum(torch.maximum(values, bounds[:, 0]), bounds[:, 1])

    @torch.inference_mode()
    def predict(self, samples: Sequence[Samples]) -> np.ndarray:
        """(prompts, figures)."""
        self.eval()
        parts = [self.restore(self(samples[at : at + 64])) for at in range(0, len(samples), 64)]
        return np.asarray(torch.cat(parts).double().numpy())


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


def compute_nats(mu: Tensor, log_sigma: Tensor, samples: Sequence[Samples]) -> Tensor:
    """Negative log-likelihood of the logarithm of one answer, the mean over the prompts.

    mu, log_sigma: (batch,). A cut answer counts as longer.
    """
    at = torch.repeat_interleave(torch.tensor([len(one.tokens) for one in samples]))
    logs = torch.tensor(np.concatenate([np.log(one.lengths) for one in samples])).to(mu)
    cut = torch.tensor(np.concatenate([one.is_cut for one in samples]))
    z = (logs - mu[at]) / log_sigma[at].exp()
    student: Any = torch.distributions.StudentT(NU)
    found = torch.zeros_like(z).masked_scatter(
        ~cut, student.log_prob(z[~cut]) - log_sigma[at][~cut]
    )
    survival: Tensor = LogSurvival.apply(z[cut])  # type: ignore[no-untyped-call]
    found = found.masked_scatter(cut, survival)
    weights = torch.tensor([1 / len(one.tokens) for one in samples])[at]
    return -(found * weights).sum() / len(samples)


def compute_list_loss(scores: Tensor, tokens: Tensor) -> Tensor:
    """ListMLE: how unlikely the order of the batch by length is, where a small score makes a prompt
    likely to come first. scores, tokens: (batch,). Ref: Fu et al. 2024."""
    ordered = -scores[torch.argsort(tokens, stable=True)]
    remaining = torch.logcumsumexp(ordered.flip(0), 0).flip(0)
    return (remaining - ordered).mean()


def train(
    samples: Sequence[Samples],
    settings: TextSettings,
    vectors: Vectors | None = None,
    note: Callable[[str], None] = lambda line: None,
) -> TextModel:
    """Train a model. The same arguments give the same model on one machine. vectors: of the frozen
    encoder. None trains the small one."""
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        model = TextModel(settings, vectors)
        one_each = torch.tensor([float(one.tokens[0]) for one in samples])
        targets = (one_each.log() if settings.loss == LOG else one_each)[:, None]
        if settings.loss == MEAN:
            targets = torch.tensor([[float(one.lengths.mean())] for one in samples])
        if settings.loss in DISTRIBUTIONS:
            fitted = list_parameters([one.fitted for one in samples])
            targets = torch.tensor(np.stack(fitted, 1), dtype=torch.float32)
        if settings.loss != RANK:
            model.scale.data = torch.stack([targets.mean(0), targets.std(0).clamp(min=1e-3)])
        order = list(range(len(samples)))
        shuffle = random.Random(settings.seed).shuffle
        shuffle(order)
        held = max(2, round(settings.validation_share * len(order)))
        validation, rows = order[:held], order[held:]
        best = math.inf, model.state_dict()

        def compute_loss(rows: Sequence[int]) -> Tensor:
            scores = model([samples[i] for i in rows])
            if settings.loss == LIKELIHOOD:
                mu, log_sigma = model.restore(scores).unbind(1)
                return compute_nats(mu, log_sigma, [samples[i] for i in rows])
            if settings.loss == RANK:
                return compute_list_loss(scores[:, 0], one_each[list(rows)])
            wanted = (targets[list(rows)] - model.scale[0]) / model.scale[1]
            return nn.functional.mse_loss(scores, wanted)

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
        run_stage(settings.epochs, [{"params": [*body, *heads], "lr": settings.rate}])
        for parameter in body:
            parameter.requires_grad_(False)
        run_stage(settings.head_epochs, [{"params": heads, "lr": settings.head_rate}])
        return model.eval()
