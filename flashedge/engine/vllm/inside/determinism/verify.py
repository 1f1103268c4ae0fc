"""Draws the tokens of a verify pass, and accepts the guesses that they confirm.

The row of a sequence's last known token draws the token behind it. If that is what the next row was
computed from, the next row is right, and so on up to the first wrong guess. vLLM's own speculative
decoding returns its tokens in the same form, so a pass could verify the drafts of a small model as
well as the candidates of shared steps.

Each token is drawn by the noise of its seed and position, as in a shared step.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from vllm.v1.outputs import SamplerOutput

from flashedge.engine.vllm.inside.determinism.replay_pass import ReplayPass
from flashedge.engine.vllm.inside.noise import PositionNoise, make_row
from flashedge.engine.vllm.inside.sampling.drawer import TokenDrawer
from flashedge.engine.vllm.inside.sampling.rows import IndexedRow

REJECTED = -1
"""vLLM's mark of a place without a token."""


def draw_verified(runner: Any, logits: torch.Tensor, replay_pass: ReplayPass) -> SamplerOutput:
    """Stand for vLLM's sampler in a verify pass.

    runner: a GPUModelRunner; logits: (rows, vocab), those of all rows of the pass.
    """
    batch = runner.input_batch
    names: Sequence[str] = batch.req_ids
    guesses = [replay_pass.guesses[name] for name in names]
    width = 1 + max(map(len, guesses))
    counts = [int(runner.num_scheduled_tokens.np[i]) for i in range(len(names))]
    places, sampled = _find_rows(runner, names, guesses, counts, width)
    chosen = logits.index_select(0, torch.tensor(places, device=logits.device))
    logprobs = None
    most_logprobs = batch.sampling_metadata.max_num_logprobs
    if most_logprobs is not None:
        logprobs = runner.sampler.compute_logprobs(chosen)
    chosen = chosen.to(torch.float32)
    if sampled:
        _find_drawer(batch).mark_winners(chosen, sampled)
    drawn = runner.sampler.greedy_sample(chosen).long()
    accepted = accept(drawn.view(len(names), width).tolist(), guesses)
    return SamplerOutput(
        sampled_token_ids=torch.tensor(accepted, dtype=torch.int32, device=logits.device),
        logprobs_tensors=None
        if logprobs is None
        else runner.sampler.gather_logprobs(logprobs, most_logprobs, token_ids=drawn),
    )


def accept(drawn: Sequence[Sequence[int]], guesses: Sequence[Sequence[int]]) -> list[list[int]]:
    """What each request gets: the right guesses and the token behind them, then REJECTED.

    drawn: for each request the tokens of its rows, padded to one length.
    """
    found: list[list[int]] = []
    for tokens, guessed in zip(drawn, guesses, strict=True):
        right = next((i for i, guess in enumerate(guessed) if guess != tokens[i]), len(guessed))
        found.append([*tokens[: right + 1], *[REJECTED] * (len(tokens) - right - 1)])
    return found


def _find_rows(
    runner: Any,
    names: Sequence[str],
    guesses: Sequence[Sequence[int]],
    counts: Sequence[int],
    width: int,
) -> tuple[list[int], list[IndexedRow]]:
    """The rows of the pass that draw tokens, `width` for each request, the last one repeated; and
    the noise of those whose request is sampled by ours, by their index among them."""
    places: list[int] = []
    sampled: list[IndexedRow] = []
    start = 0
    for name, guessed, count in zip(names, guesses, counts, strict=True):
        state = runner.requests[name]
        first = start + count - 1 - len(guessed)
        for offset in range(width):
            row = make_row(state.sampling_params, state.num_tokens + min(offset, len(guessed)), ())
            if row is not None and row.temperature > 0:
                sampled.append((len(places), row))
            places.append(first + min(offset, len(guessed)))
        start += count
    return places, sampled


def _find_drawer(batch: Any) -> TokenDrawer:
    """What our logits processor draws by on this device."""
    return next(
        processor.drawer
        for processor in batch.sampling_metadata.logitsprocs.non_argmax_invariant
        if isinstance(processor, PositionNoise)
    )
