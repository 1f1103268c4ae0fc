"""Sampling as argmax(logits / T + Gumbel noise), the noise a pure function of (seed, position).

The noise of the token at absolute position p under seed s is hash(s, p, token id), independent of
batch, request and preemptions. vLLM's own seeded sampling restarts its random stream with each
request, so a path that is submitted again from a boundary would draw other tokens. Requests run at
temperature 0, at which vLLM takes the argmax of what this returns. Callers refuse penalties, which
the first model runner applies behind this processor.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcRequestState
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as SlotProcessor

from flashedge.engine.vllm.inside.keys import read_args
from flashedge.engine.vllm.inside.sampling.drawer import TokenDrawer
from flashedge.engine.vllm.inside.sampling.naive import SampledRow
from flashedge.types import MAX_SEED


class PositionNoise(LogitsProcessor):
    """Applies temperature, the cuts of unlikely tokens, and noise to requests with
    `extra_args["flashedge"]` alone, in vLLM's first model runner."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self.drawer = TokenDrawer(vllm_config, device)
        self._rows: dict[int, SampledRow] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for index in batch_update.removed:
            self._rows.pop(index, None)
        for index, params, prompt_ids, output_ids in batch_update.added:
            row = None if prompt_ids is None else make_row(params, len(prompt_ids), output_ids)
            if row is None:
                self._rows.pop(index, None)
            else:
                self._rows[index] = row
        for source, target, direction in batch_update.moved:
            moved, displaced = self._rows.pop(source, None), self._rows.pop(target, None)
            if moved is not None:
                self._rows[target] = moved
            if direction == MoveDirectionality.SWAP and displaced is not None:
                self._rows[source] = displaced

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Make the drawn token of each sampled row its argmax, in place.

        logits: (batch, vocab) float32.
        """
        sampled = [(i, r) for i, r in self._rows.items() if r.temperature > 0 and i < len(logits)]
        if sampled:
            self.drawer.mark_winners(logits, sampled)
        return logits


class SlotNoise(SlotProcessor):
    """The same in vLLM's second model runner, whose own noise would do (it depends on seed and
    position alone), but whose top-p takes another kernel for more than 64 rows."""

    def __init__(self, vllm_config: VllmConfig, req_states: LogitsProcRequestState) -> None:
        self._drawer = TokenDrawer(vllm_config, req_states.device)
        self._rows: list[SampledRow | None] = [None] * req_states.max_num_reqs

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        row = make_row(sampling_params, 0, ())
        is_sampled = row is not None and row.temperature > 0
        self._rows[req_idx] = row if is_sampled else None
        return is_sampled

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        sampled = []
        slots, lengths = ctx.idx_mapping_np.tolist(), ctx.seq_lens_upper_bound_np.tolist()
        for index, slot in enumerate(slots):
            if (row := self._rows[slot]) is not None:
                row.prompt_len = lengths[index]  # all tokens before the one that is drawn
                sampled.append((index, row))
        if sampled:
            self._drawer.mark_winners(logits, sampled)
        return logits


def make_row(params: SamplingParams, prompt_len: int, output: Sequence[int]) -> SampledRow | None:
    """Describe how the token behind prompt and output is drawn. None: by vLLM's own sampler.

    The seed of a request outside any run is vLLM's, which differs from choice to choice.
    """
    args = read_args(params)
    if "temperature" not in args:
        return None
    seed = args.get("seed")
    return SampledRow(
        seed=params.seed & MAX_SEED if seed is None else seed,
        temperature=args["temperature"],
        top_k=args["top_k"],
        top_p=args["top_p"],
        min_p=args.get("min_p", 0.0),
        prompt_len=prompt_len,
        output=output,
    )
