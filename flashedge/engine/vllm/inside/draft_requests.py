"""vLLM's requests as speculation uses them: one request serves a path's steps one after another.

The front end asks for each step under an id of its own. Where a step goes on from a draft, vLLM's
request behind the draft goes on too, with its KV to the last token and its row in the batch; only
what it is told to the front end as changes.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.engine import FinishReason as VllmFinish
from vllm.v1.metrics.stats import PrefillStats
from vllm.v1.outputs import LogprobsLists
from vllm.v1.request import Request, RequestStatus

from flashedge.engine.vllm.inside.keys import ARGS_KEY, BOUNDARY, DRAWN
from flashedge.scheduling.speculation.drafts import Beam, Draft
from flashedge.search.steps import BoundaryRule
from flashedge.types import FinishReason, Sampling

DRAFT_PRIORITY = 1 << 30  # who frees blocks for a smaller quota takes drafts first


@dataclass(slots=True, eq=False, kw_only=True)
class Label:
    """As what a request's outputs are told to the front end.

    name: the front end's id of the step; drawn: tokens that the step began with; stats: told with
    the first output.
    """

    name: str
    drawn: int = 0
    stats: PrefillStats | None = None

    def put_on(self, output: EngineCoreOutput) -> None:
        output.request_id = self.name
        if self.drawn:  # on each one: of outputs that the front end joins the last one's stands
            output.kv_transfer_params = {DRAWN: self.drawn}
        if self.stats is not None:
            output.prefill_stats, self.stats = self.stats, None


@dataclass(slots=True, eq=False, kw_only=True)
class Work:
    """What one of vLLM's requests does now: a step that was asked for (label, beam), or a draft.

    start: tokens that the request generated before this step; rows: log-probabilities of a draft's
    tokens; finish: why the draft's step ended.
    """

    request: Request
    to_boundary: bool
    start: int = 0
    label: Label | None = None
    beam: Beam | None = None
    draft: Draft | None = None
    rows: list[LogprobsLists] = field(default_factory=list)
    finish: FinishReason | None = None

    def ask(self, label: Label, beam: Beam) -> None:
        """It is a step that was asked for from now on."""
        self.label, self.beam = label, beam
        self.draft, self.rows, self.finish = None, [], None

    def go_ahead(self, draft: Draft) -> None:
        """It is what follows its step from now on."""
        self.label, self.beam, self.draft = None, None, draft
        self.start = self.request.num_output_tokens
        bound = draft.follow_up.granularity
        self.aim(bound.max_tokens, to_boundary=not bound.to_end)
        self.request.priority = DRAFT_PRIORITY

    def aim(self, max_tokens: int, *, to_boundary: bool) -> None:
        """The step may have so many tokens."""
        self.request.max_tokens = self.start + max_tokens
        self.to_boundary = to_boundary

    @property
    def seed(self) -> int:
        """Of the request's noise, whatever it does."""
        return int(noise_args(self.request)["seed"])

    @property
    def has_kv(self) -> bool:
        return self.request.num_computed_tokens > 0

    @property
    def is_running(self) -> bool:
        return self.request.status == RequestStatus.RUNNING


def noise_args(request: Request) -> dict[str, Any]:
    """What `generator.edge_params` sent along; empty where it did not make the request."""
    params = request.sampling_params
    return ((params.extra_args or {}).get(ARGS_KEY) or {}) if params else {}


def sampling_of(args: dict[str, Any]) -> Sampling:
    return Sampling(temperature=args["temperature"], top_p=args["top_p"], top_k=args["top_k"])


def stop_ids(request: Request) -> frozenset[int]:
    """Tokens that end the answer."""
    params = request.sampling_params
    return frozenset({*params.stop_token_ids, params.eos_token_id})


def ended(request: Request, max_model_len: int) -> FinishReason:
    """Why a stopped request's step ended, as the generator tells it."""
    if request.status == RequestStatus.FINISHED_STOPPED:
        return FinishReason.BOUNDARY if request.stop_reason == BOUNDARY else FinishReason.STOP
    return FinishReason.LENGTH if request.num_tokens >= max_model_len else FinishReason.STEP_LIMIT


def draft_request(draft: Draft, name: str, like: Request, max_model_len: int) -> Request:
    """A request for what `draft` is, with the noise that the step itself would have. like: any
    request of the generator's."""
    bound = draft.follow_up.granularity
    params = copy.copy(like.sampling_params)
    params.extra_args = {
        ARGS_KEY: {
            "seed": draft.seed,
            "temperature": draft.sampling.temperature,
            "top_k": draft.sampling.top_k,
            "top_p": draft.sampling.top_p,
        }
    }
    params.max_tokens = min(bound.max_tokens, max_model_len - len(draft.path))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnd:
    """By what a step ends. room: tokens that fit into the context behind its path."""

    max_tokens: int
    room: int
    rule: BoundaryRule | None
    stop_ids: Collection[int]

    def of(self, token_ids: Sequence[int]) -> tuple[int, FinishReason | None]:
        """How many of the tokens the step takes, and why it ends with the last one if it does."""
        previous = None
        for count, token in enumerate(token_ids, 1):
            if self.rule is not None and self.rule.ends_step(previous, token):
                return count, FinishReason.BOUNDARY
            if token in self.stop_ids:
                return count, FinishReason.STOP
            if count == self.room:
                return count, FinishReason.LENGTH
            if count == self.max_tokens:
                return count, FinishReason.STEP_LIMIT
            previous = token
        return len(token_ids), None


_VLLM_FINISH = {
    FinishReason.BOUNDARY: VllmFinish.STOP,
    FinishReason.STOP: VllmFinish.STOP,
    FinishReason.STEP_LIMIT: VllmFinish.LENGTH,
    FinishReason.LENGTH: VllmFinish.LENGTH,
}


def replay(
    token_ids: Sequence[int], rows: Sequence[LogprobsLists], finish: FinishReason | None
) -> EngineCoreOutput:
    """Tokens drawn ahead, as the output that the front end would have got for them; no label."""
    return EngineCoreOutput(
        request_id="",
        new_token_ids=list(token_ids),
        new_logprobs=LogprobsLists(
            np.concatenate([row.logprob_token_ids for row in rows]),
            np.concatenate([row.logprobs for row in rows]),
            np.concatenate([row.sampled_token_ranks for row in rows]),
        ),
        finish_reason=None if finish is None else _VLLM_FINISH[finish],
        stop_reason=BOUNDARY if finish is FinishReason.BOUNDARY else None,
    )


def reused(request: Request, prompt_tokens: int) -> PrefillStats:
    """Stats of a step of which `request` holds KV already."""
    stats, cached = PrefillStats(), min(request.num_computed_tokens, prompt_tokens)
    stats.set(prompt_tokens, num_local_cached_tokens=cached, num_external_cached_tokens=0)
    return stats
