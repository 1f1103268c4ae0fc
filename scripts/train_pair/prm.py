"""The verifier: the frozen trunk, and three layers on top whose weights are computed, not trained.

- The first layer compares each token with the trunk's prediction (`assemble.py`). Least squares
  turns its results into the trunk's surprise: the token's negative log-probability.
- The other two carry the greatest surprise of the answer so far to every later position.
- A logistic regression on the checker's labels turns that into a probability: that no step up to
  here is wrong.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from scripts.train_pair.assemble import (
    KNOWN,
    LOGIT,
    NUM_RESULTS,
    assemble,
    fit_least_squares,
    fit_logistic,
    set_memory,
    set_score,
)
from scripts.train_pair.batches import IGNORE, Batch, Row, collate
from scripts.train_pair.model import VERIFIER, Verifier
from scripts.train_pair.trunk import TRUNK, Trunk


def compute_surprise(trunk: Trunk, batch: Batch) -> Tensor:
    """Return the negative log-probability of each answer token, (batch, width); 0 elsewhere."""
    logits = trunk(batch.ids)[:, :-1].float()
    chosen = logits.gather(-1, batch.ids[:, 1:, None])[..., 0]
    surprise = torch.zeros(batch.ids.shape)
    surprise[:, 1:] = logits.logsumexp(-1) - chosen
    return surprise * (batch.right != IGNORE)


def find_template_tokens(row: Row, end: int) -> list[int]:
    """The tokens between the problem's end and the answer, which the chat template writes."""
    answer = next(index for index, label in enumerate(row.right) if label != IGNORE)
    return row.ids[row.ids.index(end) + 1 : answer]


@torch.no_grad()
def build_verifier(trunk: Trunk, rows: Sequence[Row], end: int, seed: int) -> Verifier:
    """Assemble the verifier and fit it on labelled rows.

    end: the id of the token that ends the problem.
    """
    groups = [rows[start : start + 32] for start in range(0, len(rows), 32)]
    batches = [collate(group, max(len(row.ids) for row in group)) for group in groups]
    written = torch.cat([batch.next[batch.next != IGNORE] for batch in batches])
    counts = torch.bincount(written, minlength=trunk.model.config.vocab).float()
    counts[find_template_tokens(rows[0], end)] = 0.0  # else their surprise would be remembered
    states = trunk.model.run(trunk.model.embed_tokens(batches[0].ids), 0, TRUNK.layers)
    scale = float(states[batches[0].right != IGNORE].pow(2).mean().sqrt())
    verifier = assemble(trunk, VERIFIER, counts, scale, end, seed)
    body, depth = verifier.model, len(verifier.model.layers)
    first = VERIFIER.hidden - NUM_RESULTS
    columns = [first + LOGIT, first + KNOWN]
    features, targets = [], []
    for batch in batches:
        x = body.run(body.embed_tokens(batch.ids), 0, TRUNK.layers + 1)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + VERIFIER.eps)
        is_fitted = (batch.right != IGNORE) & (counts[batch.ids] > 0)
        features.append(x[is_fitted][:, columns])
        targets.append(compute_surprise(trunk, batch)[is_fitted])
    surprise = torch.zeros(VERIFIER.hidden)
    surprise[columns] = fit_least_squares(torch.cat(features), torch.cat(targets))
    set_memory(verifier, TRUNK.layers + 1, surprise, scale)
    carried, labels = [], []
    for batch in batches:
        x = body.norm(body.run(body.embed_tokens(batch.ids), 0, depth))
        carried.append(x[..., first - 1][batch.step != IGNORE])
        labels.append(batch.step[batch.step != IGNORE])
    set_score(verifier, *fit_logistic(torch.cat(carried), torch.cat(labels).float()))
    return verifier
