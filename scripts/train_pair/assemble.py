"""Build the verifier around the trunk so that it can compare at once what came with what was due.

A verifier that has to *discover* this comparison by gradient did not within 3.8 M tokens (LOG.md);
here it is put in place. The residual stream of the wider verifier is laid out as

    [0, 128)    the trunk's own stream
    [128, 252)  a code of the token at this position, which the trunk neither reads nor writes
    [252, 256)  free, for results

Layers 1 to 5 are the trunk, padded. Layer 6 looks back one position, brings the trunk's last state
there (what was expected here) forward, and its feed-forward multiplies, coordinate by coordinate,
the code that the trunk expected with the code of the token that came: silu(a)b - silu(-a)b = ab,
so pairs of units compute products exactly. Their sum, the logit of the token, goes to a free place;
since the trunk was trained to keep the sum of exponentials at one (trunk.py), it is the negative
surprise. Another place holds whether the token has a code (the 124 most frequent have), another
whether the problem is over. Layers 7 and 8 remember the greatest surprise.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scripts.train_pair.model import Generator, Layer, ModelConfig, RMSNorm, Verifier, look_back

NUM_RESULTS = 4
LOGIT, MEMORY, KNOWN, ANSWERING = range(NUM_RESULTS)
CODE_NORM = 0.05  # small beside the trunk's stream, so that its norms hardly notice
SHARP = 3.0  # of the memory's attention to the greatest surprise
LOUDNESS = 150.0  # of what is brought forward, beside the stream it is added to


def token_codes(counts: Tensor, width: int, seed: int) -> Tensor:
    """Codes (vocab, width): orthonormal for the most frequent tokens, zero for the others and for
    what is never written: the words between problem and answer are not judged.
    """
    noise = torch.Generator().manual_seed(seed + 3)
    codes = torch.zeros(len(counts), width)
    basis = torch.linalg.qr(torch.randn(width, width, generator=noise))[0]
    first = counts.argsort(descending=True)[:width]
    codes[first] = basis
    codes[counts == 0] = 0.0
    return codes


def widen_norm(wide: RMSNorm, narrow: RMSNorm, rest: float) -> None:
    """The same norm of the first coordinates when the others are near zero; `rest` for those."""
    size, full = narrow.weight.numel(), wide.weight.numel()
    wide.weight.fill_(rest)
    wide.weight[:size] = narrow.weight * (size / full) ** 0.5


def widen_layer(wide: Layer, narrow: Layer) -> None:
    """The same layer on the first coordinates; added heads and units read but do not write yet."""
    widen_norm(wide.input_layernorm, narrow.input_layernorm, 1.0)
    widen_norm(wide.post_attention_layernorm, narrow.post_attention_layernorm, 1.0)
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        source, target = getattr(narrow.self_attn, name), getattr(wide.self_attn, name)
        rows, columns = source.weight.shape
        target.weight[:rows, columns:] = 0
        target.weight[:rows, :columns] = source.weight
        if source.bias is not None:
            target.bias[:rows] = source.bias
    wide.self_attn.o_proj.weight[:, narrow.self_attn.o_proj.weight.shape[1] :] = 0
    wide.self_attn.o_proj.weight[narrow.self_attn.o_proj.weight.shape[0] :] = 0
    for name in ("gate_proj", "up_proj"):
        source, target = getattr(narrow.mlp, name), getattr(wide.mlp, name)
        rows, columns = source.weight.shape
        target.weight[:rows, columns:] = 0
        target.weight[:rows, :columns] = source.weight
    down = narrow.mlp.down_proj.weight
    wide.mlp.down_proj.weight.zero_()
    wide.mlp.down_proj.weight[: down.shape[0], : down.shape[1]] = down


def set_comparison(layer: Layer, trunk: Generator, codes: Tensor, scale: float, end: int) -> None:
    """Make a fresh layer compare; `scale` is the size (rms) of the stream that it adds to."""
    width, size = codes.shape[1], trunk.model.config.hidden
    attention, full = layer.self_attn, layer.self_attn.o_proj.weight.shape[0]
    dim, big, first = attention.head_dim, LOUDNESS * scale, size + width
    look_back(layer, size // dim)
    widen_norm(layer.input_layernorm, trunk.model.norm, scale / CODE_NORM)
    attention.v_proj.weight.zero_()
    attention.v_proj.weight[:size, :size] = torch.eye(size)
    attention.o_proj.weight.zero_()
    attention.o_proj.weight[:size, :size] = big * torch.eye(size)
    # a further head looks for the end of the problem: one is found there, so this is the answer
    slow = size + dim // 2 - 1
    attention.q_proj.weight[size:] = 0
    attention.k_proj.weight[size:] = 0
    attention.q_proj.bias[slow] = 24 * dim**0.5
    attention.k_proj.weight[slow, size:first] = codes[end]
    attention.v_proj.weight[size, size:first] = codes[end]
    attention.o_proj.weight[first + ANSWERING, size] = big
    # what the feed-forward reads: codes and the brought state, both of about unit size
    norm, narrow = layer.post_attention_layernorm, (size / full) ** 0.5
    norm.weight[:size] = narrow
    norm.weight[size:first] = big * narrow / CODE_NORM
    norm.weight[first:] = narrow
    known = codes.abs().sum(1) > 0
    known[end] = False  # it is found, never judged
    expected = codes[known].T @ trunk.model.embed_tokens.weight[known]
    ones = codes[known].sum(0)  # reads 1 from known codes
    gate, up, down = (
        getattr(layer.mlp, name).weight for name in ("gate_proj", "up_proj", "down_proj")
    )
    number = 2 * width + 1
    gate[:number], up[:number], down[:, :number], down[size:] = 0, 0, 0, 0
    for sign, start in ((1.0, 0), (-1.0, width)):
        rows = torch.arange(start, start + width)
        gate[rows, size : size + width] = 4.0 * sign * torch.eye(width)
        up[rows, :size] = expected
        down[first + LOGIT, rows] = sign * big / 64
    # and whether the token is known
    gate[number - 1, size : size + width] = 16 * ones
    up[number - 1, size : size + width] = ones
    down[first + KNOWN, number - 1] = big / 64


@torch.no_grad()
def assemble(
    trunk: Generator, config: ModelConfig, counts: Tensor, scale: float, end: int, seed: int
) -> Verifier:
    """The verifier around `trunk`. counts: (vocab,) how often each token is written."""
    torch.manual_seed(seed + 1)
    verifier = Verifier(config)
    size, body = trunk.model.config.hidden, verifier.model
    width = config.hidden - size - NUM_RESULTS
    counts = counts.clone()
    counts[end] = counts.max() + 1  # the end of the problem has to be known too
    codes = token_codes(counts, width, seed)
    body.embed_tokens.weight.zero_()
    body.embed_tokens.weight[:, :size] = trunk.model.embed_tokens.weight
    body.embed_tokens.weight[:, size : size + width] = CODE_NORM * codes
    for wide, narrow in zip(body.layers, trunk.model.layers, strict=False):
        widen_layer(wide, narrow)
    set_comparison(body.layers[len(trunk.model.layers)], trunk, codes, scale, end)
    return verifier


def fit(features: Tensor, wanted: Tensor) -> Tensor:
    """Least squares without a constant from features (count, width) to wanted (count,): weights
    (width,). What has no features, a token without a code, gets zero.
    """
    solved = torch.linalg.lstsq(features.double(), wanted.double()[:, None]).solution
    return solved[:, 0].float()


@torch.no_grad()
def set_memory(verifier: Verifier, index: int, surprise: Tensor, scale: float) -> None:
    """Make the layers from `index` on carry the greatest surprise so far to every later position.

    surprise: (hidden,), its weights.

    Layer `index` multiplies the surprise with the mark of the answer (nothing on the prompt). The
    next layer's first head has it as key and as value, and a constant as query; key and query lie
    in the slowest rotary pair, so that distance does not matter. What it finds goes to the first
    coordinate of the code, whose token is judged by now, and the score's first unit reads it
    there.
    """
    full = verifier.model.config.hidden
    first, big = full - NUM_RESULTS, LOUDNESS * scale
    gating, carrying = verifier.model.layers[index], verifier.model.layers[index + 1]
    gating.self_attn.o_proj.weight.zero_()
    gating.mlp.down_proj.weight.zero_()
    for unit, sign in ((0, 1.0), (1, -1.0)):
        gating.mlp.gate_proj.weight[unit] = sign * surprise
        gating.mlp.up_proj.weight[unit] = 0
        gating.mlp.up_proj.weight[unit, first + ANSWERING] = 1.0
        gating.mlp.down_proj.weight[first + MEMORY, unit] = sign * big / 8
    attention, half = carrying.self_attn, carrying.self_attn.head_dim // 2
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
        projection.weight[: 2 * half] = 0
        projection.bias[: 2 * half] = 0
    attention.q_proj.bias[half - 1] = SHARP * (2 * half) ** 0.5
    attention.k_proj.weight[half - 1, first + MEMORY] = 8.0
    attention.v_proj.weight[0, first + MEMORY] = 8.0
    attention.o_proj.weight.zero_()
    attention.o_proj.weight[full - NUM_RESULTS - 1, 0] = big / 8
    carrying.mlp.down_proj.weight.zero_()


@torch.no_grad()
def set_score(verifier: Verifier, slope: float, bias: float) -> None:
    """Score by the carried surprise: logit of "right" = slope * carried + bias."""
    low, high = verifier.score[0], verifier.score[2]
    place = verifier.model.config.hidden - NUM_RESULTS - 1
    low.weight[:2] = 0
    low.bias[:2] = 0
    low.weight[0, place], low.weight[1, place] = 1.0, -1.0
    high.weight.mul_(0.01)
    high.weight[:, :2] = torch.tensor([[-slope / 2, slope / 2], [slope / 2, -slope / 2]])
    high.bias.copy_(torch.tensor([-bias / 2, bias / 2]))


def fit_logistic(x: Tensor, label: Tensor, rounds: int = 50) -> tuple[float, float]:
    """Slope and bias of the logistic regression of label (count,) on x (count,), by Newton."""
    points = torch.stack([x.double(), torch.ones(len(x), dtype=torch.double)], 1)
    weights = torch.zeros(2, dtype=torch.double)
    for _ in range(rounds):
        said = (points @ weights).sigmoid()
        slope = points.T @ (said - label.double()) / len(x) + 1e-5 * weights
        bend = points.T @ (points * (said * (1 - said))[:, None]) / len(x)
        weights = weights - 0.7 * torch.linalg.solve(bend + 1e-5 * torch.eye(2).double(), slope)
    return float(weights[0]), float(weights[1])
