"""Set the verifier's weights so that it compares each token with the trunk's prediction.

Gradient descent did not find this comparison within 3.8 M tokens (LOG.md), so we write it into the
weights. The residual stream of the wider verifier is laid out as

    [0, 128)    the trunk's own stream
    [128, 252)  a code of the token at this position, which the trunk neither reads nor writes
    [252, 256)  results (LOGIT, MEMORY, KNOWN, ANSWERING)

- Layers 1 to 5 are the trunk, padded.
- Layer 6 looks back one position and copies the trunk's last state from there: the prediction for
  this position. Its feed-forward multiplies the predicted code with the code of the actual token,
  coordinate by coordinate. A pair of units computes such a product exactly, because
  silu(a)b - silu(-a)b = ab. The sum of the products is the token's logit (LOGIT). The trunk was
  trained to keep the sum of exponentials at one (`trunk.py`), so this logit is the negative
  surprise. KNOWN says whether the token has a code; the 124 most frequent tokens have one.
  ANSWERING says whether the problem has ended.
- Layers 7 and 8 remember the greatest surprise (MEMORY).
"""

from typing import cast

import torch
from torch import Tensor, nn

from scripts.train_pair.model import Layer, ModelConfig, RMSNorm, Verifier, set_look_back
from scripts.train_pair.trunk import Trunk

NUM_RESULTS = 4
LOGIT, MEMORY, KNOWN, ANSWERING = range(NUM_RESULTS)
CODE_NORM = 0.05  # small against the trunk's stream, so that the norms hardly change
SHARP = 3.0  # how sharply the memory attends to the greatest surprise
LOUDNESS = 150.0  # size of what a layer writes, relative to the stream that it adds to


def make_token_codes(counts: Tensor, width: int, seed: int) -> Tensor:
    """Return codes (vocab, width): orthonormal for the most frequent tokens, zero for the others.

    Tokens that no answer contains have no code, so the chat template's own words are not judged.
    """
    noise = torch.Generator().manual_seed(seed + 3)
    codes = torch.zeros(len(counts), width)
    basis = torch.linalg.qr(torch.randn(width, width, generator=noise))[0]
    first = counts.argsort(descending=True)[:width]
    codes[first] = basis
    codes[counts == 0] = 0.0
    return codes


def widen_norm(wide: RMSNorm, narrow: RMSNorm, rest: float) -> None:
    """Copy the narrow norm to the first coordinates; the others get the weight `rest`.

    The result is the same as long as the other coordinates are near zero.
    """
    size, full = narrow.weight.numel(), wide.weight.numel()
    wide.weight.fill_(rest)
    wide.weight[:size] = narrow.weight * (size / full) ** 0.5


def widen_layer(wide: Layer, narrow: Layer) -> None:
    """Copy the narrow layer to the first coordinates. Added heads and units write nothing yet."""
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


def set_comparison(layer: Layer, trunk: Trunk, codes: Tensor, scale: float, end: int) -> None:
    """Make a fresh layer compare each token with the trunk's prediction.

    scale: the size (root mean square) of the stream that the layer adds to.
    end: the id of the token that ends the problem.
    """
    width, size = codes.shape[1], trunk.model.config.hidden
    attention, full = layer.self_attn, layer.self_attn.o_proj.weight.shape[0]
    dim, big, first = attention.head_dim, LOUDNESS * scale, size + width
    set_look_back(layer, size // dim)
    widen_norm(layer.input_layernorm, trunk.model.norm, scale / CODE_NORM)
    attention.v_proj.weight.zero_()
    attention.v_proj.weight[:size, :size] = torch.eye(size)
    attention.o_proj.weight.zero_()
    attention.o_proj.weight[:size, :size] = big * torch.eye(size)
    # another head looks for the end of the problem; after it, the text is the answer
    slow = size + dim // 2 - 1
    attention.q_proj.weight[size:] = 0
    attention.k_proj.weight[size:] = 0
    attention.q_proj.bias[slow] = 24 * dim**0.5
    attention.k_proj.weight[slow, size:first] = codes[end]
    attention.v_proj.weight[size, size:first] = codes[end]
    attention.o_proj.weight[first + ANSWERING, size] = big
    # the feed-forward reads the codes and the copied state, both scaled to about unit size
    norm, narrow = layer.post_attention_layernorm, (size / full) ** 0.5
    norm.weight[:size] = narrow
    norm.weight[size:first] = big * narrow / CODE_NORM
    norm.weight[first:] = narrow
    known = codes.abs().sum(1) > 0
    known[end] = False  # the head above finds it, but it is never judged
    expected = codes[known].T @ trunk.head.weight[known]
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
    # one more unit says whether the token has a code
    gate[number - 1, size : size + width] = 16 * ones
    up[number - 1, size : size + width] = ones
    down[first + KNOWN, number - 1] = big / 64


@torch.no_grad()
def assemble(
    trunk: Trunk, config: ModelConfig, counts: Tensor, scale: float, end: int, seed: int
) -> Verifier:
    """Build the verifier around `trunk`. counts: (vocab,), how often answers contain a token."""
    torch.manual_seed(seed + 1)
    verifier = Verifier(config)
    size, body = trunk.model.config.hidden, verifier.model
    width = config.hidden - size - NUM_RESULTS
    counts = counts.clone()
    counts[end] = counts.max() + 1  # the end of the problem needs a code too
    codes = make_token_codes(counts, width, seed)
    body.embed_tokens.weight.zero_()
    body.embed_tokens.weight[:, :size] = trunk.model.embed_tokens.weight
    body.embed_tokens.weight[:, size : size + width] = CODE_NORM * codes
    for wide, narrow in zip(body.layers, trunk.model.layers, strict=False):
        widen_layer(wide, narrow)
    set_comparison(body.layers[len(trunk.model.layers)], trunk, codes, scale, end)
    return verifier


def fit_least_squares(features: Tensor, targets: Tensor) -> Tensor:
    """Fit targets (count,) by features (count, width), without a constant: weights (width,).

    Without a constant, a token that has no code (all features zero) gets surprise zero.
    """
    solution: Tensor = torch.linalg.lstsq(features.double(), targets.double()[:, None]).solution
    return solution[:, 0].float()


@torch.no_grad()
def set_memory(verifier: Verifier, index: int, surprise: Tensor, scale: float) -> None:
    """Make the layers from `index` on carry the greatest surprise so far to every later position.

    surprise: (hidden,), the weights that compute it.

    Layer `index` multiplies the surprise with ANSWERING, so that the prompt has none. The first
    head of the next layer uses the product as key and value, and a constant as query. Key and
    query lie in the slowest rotary pair, so that distance does not matter. The head writes its
    result to the last coordinate of the code, which is no longer needed, and the score's first
    unit reads it there.
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
    low, high = cast(nn.Linear, verifier.score[0]), cast(nn.Linear, verifier.score[2])
    column = verifier.model.config.hidden - NUM_RESULTS - 1
    low.weight[:2] = 0
    low.bias[:2] = 0
    low.weight[0, column], low.weight[1, column] = 1.0, -1.0
    high.weight.mul_(0.01)
    high.weight[:, :2] = torch.tensor([[-slope / 2, slope / 2], [slope / 2, -slope / 2]])
    high.bias.copy_(torch.tensor([-bias / 2, bias / 2]))


def fit_logistic(x: Tensor, label: Tensor, rounds: int = 50) -> tuple[float, float]:
    """Return slope and bias of the logistic regression of label (count,) on x (count,).

    Newton's method with a small ridge and a damped step.
    """
    points = torch.stack([x.double(), torch.ones(len(x), dtype=torch.double)], 1)
    weights = torch.zeros(2, dtype=torch.double)
    for _ in range(rounds):
        predicted = (points @ weights).sigmoid()
        gradient = points.T @ (predicted - label.double()) / len(x) + 1e-5 * weights
        curvature = points.T @ (points * (predicted * (1 - predicted))[:, None]) / len(x)
        ridge = 1e-5 * torch.eye(2).double()
        weights = weights - 0.7 * torch.linalg.solve(curvature + ridge, gradient)
    return float(weights[0]), float(weights[1])
