"""Functions that give a pass its fixed shape in vLLM's first model runner. `patches` puts them in
the place of vLLM's. Without guesses and deterministic requests they change nothing.

- A pass always computes `rows` rows. vLLM adds the padding, as it does for CUDA graphs.
- Attention sums over the KV of a sequence in one piece. Otherwise vLLM chooses the number of pieces
  by what else is in the batch, while it builds a step's metadata.
- A verify pass computes the logits of all rows, so that the head has one shape.
- A verifier's head is applied to one tile of a path after another, from the path's start. The last
  tile is padded. vLLM would apply the head at once to all rows that were not in the cache.

In a verify pass, and where tokens are drafted (`inside.token_drafts`), the row of a sequence's last
known token draws the token after it. If that token is the first guess, the next row was computed
from the right token, and so on up to the first wrong guess. Each token is drawn by the noise of its
seed and position. The tokens are returned in the form of vLLM's speculative decoding. Checked with
vLLM 0.32.0.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any

import numpy as np
import torch
from vllm import envs
from vllm.model_executor.layers.pooler.tokwise.heads import TokenClassifierPoolerHead
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from flashedge.engine.vllm.inside.determinism.windows import find_pass
from flashedge.engine.vllm.inside.keys import DETERMINISTIC, read_args
from flashedge.engine.vllm.inside.noise import PositionNoise, is_plain, make_row
from flashedge.engine.vllm.inside.sampling.naive import IndexedRow, copy_to

_prepare_inputs = GPUModelRunner._prepare_inputs
_determine_padding = GPUModelRunner._determine_batch_execution_and_padding
_build_attention_metadata = GPUModelRunner._build_attention_metadata
_sample = GPUModelRunner._sample
_sample_tokens = GPUModelRunner.sample_tokens
_pool = GPUModelRunner._pool
_forward_chunk = TokenClassifierPoolerHead.forward_chunk
_CURRENT = "_flashedge_pass"
"""The attribute of the runner that holds the `ReplayPass` of its step."""
_GUESSES = "_flashedge_guesses"
"""The attribute of the runner that holds, for the requests of its step, their guesses and the index
of each one's last row among the computed logits."""
_END = "_flashedge_end"
"""The attribute of a request's pooling state: the position after the rows in it."""
TILE = 32
"""Rows of a tile. All windows are multiples of it, so that cached prefixes end between tiles."""
ONE_SPLIT = {
    "VLLM_CPU_ATTN_SPLIT_KV": False,  # for attention on a CPU
    "VLLM_BATCH_INVARIANT": True,  # for FlashAttention and other backends of cards
}


def prepare_inputs(self: Any, scheduler_output: Any, num_scheduled_tokens: Any) -> Any:
    replay_pass = find_pass(scheduler_output)
    self.__dict__[_CURRENT] = replay_pass
    if replay_pass is not None:
        # An asynchronous runner would take the last token that the step before drew for an input.
        self.input_batch.prev_sampled_token_ids = None
    prepared = _prepare_inputs(self, scheduler_output, num_scheduled_tokens)
    verify = replay_pass if replay_pass is not None and replay_pass.is_verify else None
    drafted = verify.guesses if verify else scheduler_output.scheduled_spec_decode_tokens
    if not drafted:
        return prepared
    guesses = [drafted.get(name, ()) for name in self.input_batch.req_ids]
    last = np.cumsum(num_scheduled_tokens) - 1
    if verify:
        rows = np.arange(verify.rows)
    else:
        counts = np.array([len(guessed) for guessed in guesses])
        spans = zip(last - counts, last + 1, strict=True)
        rows = np.concatenate([np.arange(first, end) for first, end in spans])
        last = np.cumsum(counts + 1) - 1
    self.__dict__[_GUESSES] = guesses, last.tolist()
    _, spec_decode_metadata, most_sampled = prepared
    return copy_to(rows, torch.int64, self.device), spec_decode_metadata, most_sampled


@wraps(_determine_padding, assigned=())
def determine_padding(self: Any, **options: Any) -> Any:
    """Pad a pass to its rows, and run it without CUDA graphs, which have other shapes."""
    if (replay_pass := self.__dict__.get(_CURRENT)) is not None:
        options |= {"num_tokens": replay_pass.rows, "force_eager": True}
    return _determine_padding(self, **options)


@contextmanager
def force_one_split() -> Iterator[None]:
    """Let metadata that is built inside the block ask for one piece. vLLM computes a setting only
    where its module `envs` has no attribute of that name."""
    before = {name: envs.__dict__.get(name) for name in ONE_SPLIT}
    envs.__dict__.update(ONE_SPLIT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del envs.__dict__[name]
            else:
                envs.__dict__[name] = value


@wraps(_build_attention_metadata, assigned=())
def build_attention_metadata(self: Any, *args: Any, **options: Any) -> Any:
    with force_one_split() if self.__dict__.get(_CURRENT) else nullcontext():
        return _build_attention_metadata(self, *args, **options)


def sample(self: Any, logits: Any, spec_decode_metadata: Any) -> Any:
    self.__dict__.pop(_CURRENT, None)
    guessed = self.__dict__.pop(_GUESSES, None)
    if guessed is None:
        return _sample(self, logits, spec_decode_metadata)
    return draw_guessed(self, logits, *guessed)


def sample_tokens(self: GPUModelRunner, grammar_output: Any) -> Any:
    """Copy the tokens of a pass to the host before returning. An asynchronous step has one
    placeholder for a request's tokens, and a pass may draw several."""
    state = self.execute_model_state
    if state is None or find_pass(state.scheduler_output) is None:
        return _sample_tokens(self, grammar_output)
    was_async, self.use_async_scheduling = self.use_async_scheduling, False
    try:
        return _sample_tokens(self, grammar_output)
    finally:
        self.use_async_scheduling = was_async


def pool(
    self: Any,
    hidden_states: torch.Tensor,
    num_scheduled_tokens: int,
    num_scheduled_tokens_np: Any,
    kv_connector_output: Any,
) -> Any:
    """Forget the earlier rows of a path that lost its blocks and is computed again: vLLM would put
    them in front. The runner calls this at the end of a verifier's step."""
    if self.__dict__.pop(_CURRENT, None) is not None:
        batch = self.input_batch
        ends = self.optimistic_seq_lens_cpu[: batch.num_reqs].tolist()
        counts = num_scheduled_tokens_np.tolist()
        for state, end, count in zip(batch.get_pooling_states(), ends, counts, strict=True):
            if state.__dict__.get(_END) != end - count:
                state.clean()
            state.__dict__[_END] = end
    return _pool(
        self, hidden_states, num_scheduled_tokens, num_scheduled_tokens_np, kv_connector_output
    )


def forward_chunk(
    self: Any, pooled_data: torch.Tensor | None, pooling_param: Any
) -> torch.Tensor | None:
    if pooled_data is None or not read_args(pooling_param).get(DETERMINISTIC):
        return _forward_chunk(self, pooled_data, pooling_param)
    count = pooled_data.shape[0]
    padded = pooled_data.new_zeros((-(-count // TILE) * TILE, *pooled_data.shape[1:]))
    padded[:count] = pooled_data
    tiles = [_forward_chunk(self, tile, pooling_param) for tile in padded.split(TILE)]
    return torch.cat(tiles)[:count]


REJECTED = -1
"""vLLM's token id in the places after the first wrong guess."""


def draw_guessed(
    runner: Any, logits: torch.Tensor, guesses: Sequence[Sequence[int]], last: Sequence[int]
) -> SamplerOutput:
    """Draw a token in the place of each guess of a request, and one after the last guess. vLLM's
    sampler draws the token of a request whose logits other processors change, too; it has no guess.
    logits: (rows, vocab). last: each request's last row."""
    batch = runner.input_batch
    metadata = batch.sampling_metadata
    width = 1 + max(map(len, guesses))
    places: list[int] = []
    sampled: list[IndexedRow] = []
    others: list[int] = []
    for index, (guessed, end) in enumerate(zip(guesses, last, strict=True)):
        state, start = runner.requests[batch.req_ids[index]], end - len(guessed)
        row = make_row(state.sampling_params, state.num_tokens, ())
        if row is None or not is_plain(state.sampling_params):
            others.append(index)
        elif row.temperature > 0:
            sampled += ((start + at, row.move(at)) for at in range(1 + len(guessed)))
        places += (min(start + at, end) for at in range(width))
    most_logprobs = metadata.max_num_logprobs
    logprobs = None if most_logprobs is None else runner.sampler.compute_logprobs(logits)
    if others:
        ends = copy_to([last[index] for index in others], torch.int64, logits.device)
        every = copy_to(last, torch.int64, logits.device)
        drawn_by_vllm = runner.sampler(logits=logits[every], sampling_metadata=metadata)
        chosen = drawn_by_vllm.sampled_token_ids.flatten()[others]
    processors = metadata.logitsprocs.non_argmax_invariant
    noise = next(found for found in processors if isinstance(found, PositionNoise))
    scores = logits.to(torch.float32)
    noise.drawer.mark_winners(scores, sampled)
    drawn = runner.sampler.greedy_sample(scores).long()
    if others:
        drawn[ends] = chosen.long()
    flat = copy_to(places, torch.int64, logits.device)
    accepted = accept(drawn[flat].view(len(guesses), width).tolist(), guesses)
    if logprobs is not None:
        found = runner.sampler.gather_logprobs(logprobs, most_logprobs, token_ids=drawn)
        logprobs = LogprobsTensors(*(tensor[flat] for tensor in found[:3]))
    return SamplerOutput(
        sampled_token_ids=torch.tensor(accepted, dtype=torch.int32, device=logits.device),
        logprobs_tensors=logprobs,
    )


def accept(drawn: Sequence[Sequence[int]], guesses: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return for each request its right guesses and the token drawn after them, then REJECTED."""
    found: list[list[int]] = []
    for tokens, guessed in zip(drawn, guesses, strict=True):
        right = next((i for i, guess in enumerate(guessed) if guess != tokens[i]), len(guessed))
        found.append([*tokens[: right + 1], *[REJECTED] * (len(tokens) - right - 1)])
    return found
