"""vLLM's requests as speculation uses them: one request serves several steps of a path in turn.

The front end requests each step under an id of its own. Where a step adopts a draft, the draft's
request goes on, with its KV and its row in the batch, and its outputs are reported under that id.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass

from vllm.v1.engine import EngineCoreOutput
from vllm.v1.engine import FinishReason as VllmFinish
from vllm.v1.metrics.stats import PrefillStats
from vllm.v1.request import Request, RequestStatus

from flashedge.engine.vllm.inside.keys import ARGS_KEY, BOUNDARY, DETERMINISTIC, DRAWN, LOGPROBS
from flashedge.scheduling.speculation.drafts import Beam, Draft
from flashedge.types import FinishReason

DRAFT_PRIORITY = 1 << 30  # a smaller quota takes blocks from drafts first


@dataclass(slots=True, eq=False, kw_only=True)
class Label:
    """How the front end knows the step that a request serves."""

    name: str
    drafted: int = 0
    stats: PrefillStats | None = None

    def put_on(self, output: EngineCoreOutput) -> None:
        output.request_id = self.name
        if self.drafted:  # on every output: the front end joins outputs and keeps the last one's
            output.kv_transfer_params = {**(output.kv_transfer_params or {}), DRAWN: self.drafted}
        if self.stats is not None:
            output.prefill_stats, self.stats = self.stats, None


@dataclass(slots=True, eq=False, kw_only=True)
class StepJob:
    """What one of vLLM's requests does now: a requested step (`label`, `beam`), or a draft."""

    request: Request
    boundary: str | None
    """Name of the rule that ends the step; None where it goes on to the answer's end."""
    start: int = 0
    """Tokens that the request generated before this step."""
    label: Label | None = None
    beam: Beam | None = None
    draft: Draft | None = None
    finish: FinishReason | None = None
    is_overdrawn: bool = False
    """Whether a token in flight is behind the draft's end: it is forgotten when it comes."""

    def serve_step(self, label: Label, beam: Beam) -> None:
        self.label, self.beam = label, beam
        self.draft = self.finish = None

    def serve_draft(self, draft: Draft) -> None:
        self.label, self.beam, self.draft = None, None, draft
        self.start = self.request.num_output_tokens
        after = draft.continuation
        self.set_limit(after.granularity.max_tokens, after.boundary)
        self.request.priority = DRAFT_PRIORITY

    def set_limit(self, max_tokens: int, boundary: str | None) -> None:
        self.request.max_tokens = self.start + max_tokens
        self.boundary = boundary

    @property
    def has_kv(self) -> bool:
        return self.request.num_computed_tokens > 0

    @property
    def is_running(self) -> bool:
        return self.request.status == RequestStatus.RUNNING


def read_finish(request: Request, max_model_len: int) -> FinishReason:
    if request.status == RequestStatus.FINISHED_STOPPED:
        return FinishReason.BOUNDARY if request.stop_reason == BOUNDARY else FinishReason.STOP
    return FinishReason.LENGTH if request.num_tokens >= max_model_len else FinishReason.STEP_LIMIT


def make_draft_request(draft: Draft, name: str, like: Request, max_model_len: int) -> Request:
    """Make a request that draws a draft, with the noise of the child's own request and otherwise
    the parameters of `like`."""
    limit = draft.continuation.granularity
    params = copy.copy(like.sampling_params)
    params.extra_args = {
        ARGS_KEY: {
            "seed": draft.seed,
            "temperature": draft.sampling.temperature,
            "top_k": draft.sampling.top_k,
            "top_p": draft.sampling.top_p,
            LOGPROBS: True,
            DETERMINISTIC: draft.continuation.deterministic,
        }
    }
    params.max_tokens = min(limit.max_tokens, max_model_len - len(draft.path))
    return Request(
        request_id=name,
        prompt_token_ids=list(draft.path),
        sampling_params=params,
        pooling_params=None,
        client_index=like.client_index,
        arrival_time=time.time(),
        priority=DRAFT_PRIORITY,
        block_hasher=like._block_hasher,
    )


_VLLM_FINISH = {
    FinishReason.BOUNDARY: VllmFinish.STOP,
    FinishReason.STOP: VllmFinish.STOP,
    FinishReason.STEP_LIMIT: VllmFinish.LENGTH,
    FinishReason.LENGTH: VllmFinish.LENGTH,
}


def make_replay_output(
    token_ids: Sequence[int], logprobs: Sequence[float], finish: FinishReason | None
) -> EngineCoreOutput:
    return EngineCoreOutput(
        request_id="",
        new_token_ids=list(token_ids),
        kv_transfer_params={LOGPROBS: list(logprobs)},
        finish_reason=None if finish is None else _VLLM_FINISH[finish],
        stop_reason=BOUNDARY if finish is FinishReason.BOUNDARY else None,
    )
