"""Where a step ends, found inside the engine.

The front end sees tokens a step or more late, but speculation has to know the boundary where slots
are filled. In an asynchronous engine the next step is under way by then: its token behind a
boundary is the first of a draft, or nobody's. Where the rule entropy ends a step, the uncertain
token has no KV yet and is never appended.

Ref: arXiv 2509.00195 §4.1. Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from flashedge.engine.vllm.inside.keys import (
    BOUNDARIES,
    BOUNDARY,
    ENTROPY_RULE,
    read_args,
    read_config,
)
from flashedge.engine.vllm.inside.outputs import find_entropy
from flashedge.search.step_rules import BoundaryRule, EntropyRule

Append = Callable[[list[int]], tuple[list[int], bool]]
"""Returns the tokens that were appended, and whether the request has ended."""


class StepBoundaries:
    def __init__(
        self, scheduler: Any, locate_step: Callable[[Request], tuple[int, str | None]]
    ) -> None:
        config = read_config(scheduler.vllm_config)
        self.rules: Mapping[str | None, BoundaryRule] = {
            name: BoundaryRule.from_json(rule) for name, rule in config.get(BOUNDARIES, {}).items()
        }
        self._locate_step = locate_step
        self._ran: ModelRunnerOutput | None = None

    def begin_update(self, ran: ModelRunnerOutput) -> None:
        self._ran = ran

    def append(
        self, request: Request, token_ids: list[int], append: Append
    ) -> tuple[list[int], bool]:
        """Append tokens up to the end of the step, by vLLM's own `append`."""
        start, name = self._locate_step(request)
        rule, asked = self.rules.get(name), read_args(request.sampling_params).get(ENTROPY_RULE)
        entropy_rule = EntropyRule(**asked) if asked else None
        if rule is None and entropy_rule is None:
            return append(token_ids)
        output = request.output_token_ids
        for at, token in enumerate(token_ids):
            count = len(output) - start
            if entropy_rule and entropy_rule.ends_before(self._find_entropy(request, at), count):
                _end_at_boundary(request)
                return token_ids[:at], True
            previous = output[-1] if count else None
            _, is_over = append([token])
            if rule is not None and rule.ends_step(previous, token):
                _end_at_boundary(request)
                is_over = True
            if is_over:
                return token_ids[: at + 1], True
        return token_ids, False

    def ends_step(self, request: Request) -> bool:
        start, name = self._locate_step(request)
        rule, tokens = self.rules.get(name), request.output_token_ids
        previous = tokens[-2] if request.num_output_tokens - start > 1 else None
        return rule is not None and rule.ends_step(previous, tokens[-1])

    def _find_entropy(self, request: Request, at: int) -> float:
        assert self._ran is not None, "tokens come with an engine step"
        assert self._ran.logprobs is not None, "the request asks for them"
        index = self._ran.req_id_to_index[request.request_id]
        return find_entropy(self._ran.logprobs.slice_request(index, at + 1).logprobs[at])


def _end_at_boundary(request: Request) -> None:
    request.status = RequestStatus.FINISHED_STOPPED
    request.stop_reason = BOUNDARY
