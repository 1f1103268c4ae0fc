"""Drafts tokens in vLLM's second model runner, in the place of vLLM's own speculators.

After each step it counts what has been drawn, and drafts what may come next. Both happen on the
device: the host waits for nothing, and knows neither the tokens nor the drafts. `card_drafts` tells
it the owners of the requests' texts. Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator

from flashedge.engine.vllm.inside.card_drafts import SOURCES, Source
from flashedge.engine.vllm.inside.draft_table import naive
from flashedge.engine.vllm.inside.draft_table.naive import NO_OWNER, OWNERS, Slots
from flashedge.engine.vllm.inside.sampling.naive import copy_to
from flashedge.scheduling.speculation.token_drafts import list_widths

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.worker.gpu.states import RequestState

_add_requests = GPUModelRunner.add_requests
SPAN = 64
"""Tokens of a prompt that are counted in one span."""


class TableSpeculator(BaseSpeculator):
    supports_mm_inputs = False
    draft_logits = None

    def __init__(self, config: VllmConfig, device: torch.device, states: RequestState) -> None:
        self.num_speculative_steps = config.num_speculative_tokens
        self._device, self._states = device, states
        self._table = naive.make_table(device)
        self._owners = np.full((states.max_num_reqs, OWNERS), NO_OWNER, np.int64)
        self._kernels: Any = naive
        if device.type == "cuda":
            from flashedge.engine.vllm.inside.draft_table import fused

            self._kernels = fused
        self._slots = self._copy_slots()
        self._is_warm = False

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """Nothing of ours is in a CUDA graph."""

    def capture(self) -> None:
        """Nothing of ours is in a CUDA graph."""

    def _copy_slots(self) -> Slots:
        return Slots(
            texts=self._states.all_token_ids.gpu,
            lengths=self._states.total_len.gpu,
            owners=copy_to(self._owners.copy(), torch.int64, self._device),
        )

    def learn(self, new: Collection[str], sources: Mapping[str, Source]) -> None:
        """Note the sources of requests whose texts are on the device, and count their prompts. new:
        the requests that have a slot since this step."""
        if not new and not sources:
            return
        places = self._states.req_id_to_index
        spans = []
        for name in {*new, *sources}:
            slot, source = places[name], sources.get(name)
            self._owners[slot] = NO_OWNER if source is None else source.owners
            if source is not None:
                for start, end in source.spans:
                    spans += [(slot, at, min(at + SPAN, end)) for at in range(start, end, SPAN)]
        self._slots = self._copy_slots()
        if spans:
            self._count(copy_to(spans, torch.int32, self._device), SPAN)

    def _count(self, spans: torch.Tensor, longest: int) -> None:
        self._kernels.count(self._table, self._slots, spans, longest)

    @torch.inference_mode()
    def propose(
        self,
        input_batch: Any,
        attn_metadata: Any,
        slot_mappings: Any,
        last_hidden_states: Any,
        aux_hidden_states: Any,
        num_sampled: torch.Tensor,
        *_: Any,
        dummy_run: bool = False,
        num_speculative_tokens: int | None = None,
        **__: Any,
    ) -> torch.Tensor:
        """Returns (requests, num_speculative_steps) int64."""
        rows, most = input_batch.idx_mapping, self.num_speculative_steps
        if dummy_run:
            self._warm_up()
            return self._fill(len(rows), most)
        ends = self._slots.lengths.index_select(0, rows)
        spans = torch.stack([rows.to(torch.int32), ends - num_sampled, ends], dim=1)
        self._count(spans, 1 + most)
        tokens = most if num_speculative_tokens is None else num_speculative_tokens
        if not tokens:
            return self._fill(len(rows), most)
        drafts = self._kernels.draft(self._table, self._slots, rows, tokens)
        return torch.cat([drafts, self._fill(len(rows), most - tokens)], dim=1)

    def _fill(self, rows: int, tokens: int) -> torch.Tensor:
        return torch.zeros(rows, tokens, dtype=torch.int64, device=self._device)

    def _warm_up(self) -> None:
        """Compile the kernels before a request waits for them. No slot has an owner yet."""
        if self._is_warm:
            return
        self._is_warm = True
        spans = torch.zeros(1, 3, dtype=torch.int32, device=self._device)
        rows = torch.zeros(1, dtype=torch.int64, device=self._device)
        for longest in (SPAN, 1 + self.num_speculative_steps):
            self._count(spans, longest)
        for _, _, tokens in list_widths(self._states.max_num_reqs, self.num_speculative_steps):
            if tokens:
                self._kernels.draft(self._table, self._slots, rows, tokens)


def init_speculator(
    vllm_config: VllmConfig, device: torch.device, req_states: RequestState
) -> TableSpeculator:
    return TableSpeculator(vllm_config, device, req_states)


def add_requests(self: Any, scheduler_output: SchedulerOutput) -> None:
    _add_requests(self, scheduler_output)
    if isinstance(self.speculator, TableSpeculator):
        new = [each.req_id for each in scheduler_output.scheduled_new_reqs]
        self.speculator.learn(new, getattr(scheduler_output, SOURCES, {}))
