"""The verifier: the frozen trunk, and above it three layers that are put in place and fitted.

The comparing layer gives a few numbers a token (assemble.py); least squares makes of them the
trunk's surprise, its negative log-probability of the token that came. Two layers carry the
greatest surprise of the answer so far onwards, and a logistic regression on the checker's labels
makes a probability of it: that nothing up to this step is wrong. Nothing but the trunk is trained
by gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from scripts.train_pair.assemble import (
    KNOWN,
    LOGIT,
    NUM_RESULTS,
    assemble,
    fit,
    fit_logistic,
    set_memory,
    set_score,
)
from scripts.train_pair.batches import IGNORE, Batch, Row, collate
from scripts.train_pair.model import VERIFIER, Generator, Verifier
from scripts.train_pair.trunk import TRUNK


def surprise_of(trunk: Generator, batch: Batch) -> Tensor:
    """The trunk's negative log-probability of each answer token, (batch, width), elsewhere 0."""
    logits = trunk(batch.ids)[:, :-1].float()
    came = logits.gather(-1, batch.ids[:, 1:, None])[..., 0]
    due = torch.zeros(batch.ids.shape)
    due[:, 1:] = logits.logsumexp(-1) - came
    return due * (batch.right != IGNORE)


@torch.no_grad()
def build_verifier(trunk: Generator, rows: Sequence[Row], end: int, seed: int) -> Verifier:
    """Assemble and fit the verifier on labelled rows; `end` is the token that ends the problem."""
    groups = [rows[start : start + 32] for start in range(0, len(rows), 32)]
    batches = [collate(group, max(len(row.ids) for row in group)) for group in groups]
    written = torch.cat([batch.next[batch.next != IGNORE] for batch in batches])
    counts = torch.bincount(written, minlength=trunk.model.config.vocab).float()
    low = trunk.model.run(trunk.model.embed_tokens(batches[0].ids), 0, TRUNK.layers)
    scale = float(low[batches[0].right != IGNORE].pow(2).mean().sqrt())
    verifier = assemble(trunk, VERIFIER, counts, scale, end, seed)
    body, depth = verifier.model, len(verifier.model.layers)
    first = VERIFIER.hidden - NUM_RESULTS
    places = [first + LOGIT, first + KNOWN]
    features, wanted = [], []
    for batch in batches:
        x = body.run(body.embed_tokens(batch.ids), 0, TRUNK.layers + 1)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + VERIFIER.eps)
        asked = (batch.right != IGNORE) & (counts[batch.ids] > 0)
        features.append(x[asked][:, places])
        wanted.append(surprise_of(trunk, batch)[asked])
    surprise = torch.zeros(VERIFIER.hidden)
    surprise[places] = fit(torch.cat(features), torch.cat(wanted))
    set_memory(verifier, TRUNK.layers + 1, surprise, scale)
    carried, labels = [], []
    for batch in batches:
        x = body.norm(body.run(body.embed_tokens(batch.ids), 0, depth))
        carried.append(x[..., first - 1][batch.step != IGNORE])
        labels.append(batch.step[batch.step != IGNORE])
    set_score(verifier, *fit_logistic(torch.cat(carried), torch.cat(labels).float()))
    return verifier
