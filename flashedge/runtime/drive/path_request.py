"""The request for a node's segment. What it yields depends on the path and the seed alone."""

from __future__ import annotations

from flashedge.engine.base import ExtendRequest
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.request.request import Request
from flashedge.scheduling.speculation.drafts import Continuation
from flashedge.types import Granularity, TokenIds


def build_path_request(
    spec: Request,
    path: TokenIds,
    seed: int,
    granularity: Granularity,
    *,
    prompt_tokens: int,
    engines: Engines,
    continuation: Continuation | None = None,
) -> ExtendRequest:
    """Build the request that continues a path. path: the prompt and the path to the parent."""
    return ExtendRequest(
        token_ids=path,
        seed=seed,
        sampling=spec.sampling,
        max_tokens=granularity.max_tokens,
        to_boundary=not granularity.to_end,
        step_rule=spec.step_rule,
        entropy_rule=None if granularity.to_end else spec.entropy_rule,
        guidance=spec.guidance,
        answer_start=prompt_tokens,
        program=engines.program,
        continuation=continuation,
        deterministic=spec.deterministic,
        each_token=not engines.optimizations.joined_tokens,
    )
