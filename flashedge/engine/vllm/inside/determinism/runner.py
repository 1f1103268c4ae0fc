"""vLLM's first model runner with passes of fixed shape, on a CPU as on a card.

These functions stand for methods of GPUModelRunner, which the CPU's runner inherits (`patches`).
In a step without a pass each calls vLLM's own and changes nothing.

A pass computes `rows` rows, whatever is in it: vLLM fills the rest as it does for CUDA graphs. A
verify pass computes the logits of all of them, so that the head has one shape too.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from flashedge.engine.vllm.inside.determinism.one_split import force_one_split
from flashedge.engine.vllm.inside.determinism.replay_pass import ReplayPass, find_pass
from flashedge.engine.vllm.inside.determinism.verify import draw_verified

_prepare_inputs = GPUModelRunner._prepare_inputs
_determine_padding = GPUModelRunner._determine_batch_execution_and_padding
_build_attention_metadata = GPUModelRunner._build_attention_metadata
_sample = GPUModelRunner._sample
_pool = GPUModelRunner._pool
_CURRENT = "_flashedge_pass"
_END = "_flashedge_end"
"""The attribute of a request's pooling state: the position behind the rows in it."""


def _get_pass(runner: Any) -> ReplayPass | None:
    """The pass that the runner computes now."""
    found: ReplayPass | None = runner.__dict__.get(_CURRENT)
    return found


def prepare_inputs(self: Any, scheduler_output: Any, num_scheduled_tokens: Any) -> Any:
    """Called first in each step. Asks for the logits of all rows in a verify pass."""
    replay_pass = find_pass(scheduler_output)
    self.__dict__[_CURRENT] = replay_pass
    prepared = _prepare_inputs(self, scheduler_output, num_scheduled_tokens)
    if replay_pass is None or not replay_pass.is_verify:
        return prepared
    _, spec_decode_metadata, most_sampled = prepared
    all_rows = torch.arange(replay_pass.rows, device=self.device)
    return all_rows, spec_decode_metadata, most_sampled


def determine_padding(
    self: Any,
    num_tokens: int,
    num_reqs: int,
    num_scheduled_tokens_np: Any,
    max_num_scheduled_tokens: int,
    use_cascade_attn: bool = False,
    allow_microbatching: bool = True,
    force_eager: bool = False,
    force_uniform_decode: bool | None = None,
    force_has_lora: bool | None = None,
    force_num_active_loras: int | None = None,
    num_encoder_reqs: int = 0,
) -> Any:
    """Pad a pass to its rows, and run it without CUDA graphs, whose shapes are others."""
    replay_pass = _get_pass(self)
    if replay_pass is not None:
        num_tokens, force_eager = replay_pass.rows, True
    return _determine_padding(
        self,
        num_tokens,
        num_reqs,
        num_scheduled_tokens_np,
        max_num_scheduled_tokens,
        use_cascade_attn,
        allow_microbatching,
        force_eager,
        force_uniform_decode,
        force_has_lora,
        force_num_active_loras,
        num_encoder_reqs,
    )


def build_attention_metadata(
    self: Any,
    num_tokens: int,
    num_reqs: int,
    max_query_len: int,
    num_tokens_padded: int | None = None,
    num_reqs_padded: int | None = None,
    ubatch_slices: Any = None,
    logits_indices: Any = None,
    max_num_sampled_tokens: int | None = None,
    use_spec_decode: bool = False,
    for_cudagraph_capture: bool = False,
    num_scheduled_tokens: dict[str, int] | None = None,
    slot_mappings: dict[int, torch.Tensor] | None = None,
) -> Any:
    """Compute the attention of a pass in one split."""
    splits = force_one_split() if _get_pass(self) is not None else nullcontext()
    with splits:
        return _build_attention_metadata(
            self,
            num_tokens,
            num_reqs,
            max_query_len,
            num_tokens_padded,
            num_reqs_padded,
            ubatch_slices,
            logits_indices,
            max_num_sampled_tokens,
            use_spec_decode,
            for_cudagraph_capture,
            num_scheduled_tokens,
            slot_mappings,
        )


def sample(self: Any, logits: Any, spec_decode_metadata: Any) -> Any:
    """Called last in each step. Draws the tokens of a verify pass."""
    replay_pass = self.__dict__.pop(_CURRENT, None)
    if replay_pass is None or not replay_pass.is_verify:
        return _sample(self, logits, spec_decode_metadata)
    return draw_verified(self, logits, replay_pass)


def pool(
    self: Any,
    hidden_states: torch.Tensor,
    num_scheduled_tokens: int,
    num_scheduled_tokens_np: Any,
    kv_connector_output: Any,
) -> Any:
    """Called last in each step of a verifier. A path that lost its blocks is computed anew: forget
    what was computed of it before, which vLLM would put in front."""
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
