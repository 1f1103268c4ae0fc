"""Scores of solutions by a pair's verifier: /v1/score, and /score as in vLLM.

The answer has vLLM's form, with the scores of the steps added. Requests in vLLM's own form go to
vLLM's handler (`api.protocols.switch`).
"""

import secrets
import time
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from flashedge.api.bodies import describe_body, parse_keep_alive, read_body
from flashedge.api.failures import Json
from flashedge.api.pairs import ServablePairs
from flashedge.api.paths import SCORES
from flashedge.api.schemas import ScoreBody
from flashedge.api.specs import parse_pair, read_caller
from flashedge.api.sse import run_while_connected
from flashedge.engine.http_requests import MAX_CHOICES
from flashedge.errors import RequestError
from flashedge.models.specs import Pair
from flashedge.runtime.request.values import check_field
from flashedge.runtime.service import Service
from flashedge.runtime.solution_scoring import ScoreAsk, Solution, SolutionScores
from flashedge.types import Problem


def scores_router(service: Service, pairs: ServablePairs) -> APIRouter:
    router = APIRouter()

    async def score(request: Request) -> Response:
        """Score one solution or several, each in its steps. Ends when the client disconnects."""
        body = await read_body(request, ScoreBody)
        pair = pairs.find(parse_pair(body.model))
        ask = build_score_ask(body, pair, deterministic=pairs.deterministic)
        caller = read_caller(request, body.priority or 0)
        service.idle.keep_alive(parse_keep_alive(body.keep_alive))

        async def answer() -> Sequence[SolutionScores]:
            async with service.use_pair(ask.pair):
                return await service.score(ask, caller)

        return Json(describe_scores(ask, await run_while_connected(request.receive, answer())))

    for path in SCORES:
        router.post(path, name=path, openapi_extra=describe_body(ScoreBody))(score)
    return router


def build_score_ask(body: ScoreBody, pair: Pair, *, deterministic: bool) -> ScoreAsk:
    """`deterministic` applies where the body sets none. Raises RequestError for a wrong field."""
    if not body.problem.strip():
        raise RequestError("the problem is empty; give some text", param="problem")
    aggregate = "last" if body.aggregate is None else body.aggregate  # as in a search
    check_field("aggregate", aggregate)
    return ScoreAsk(
        pair=pair.name,
        problem=Problem.from_text(body.problem),
        solutions=_read_solutions(body),
        aggregate=aggregate,
        deterministic=deterministic if body.deterministic is None else body.deterministic,
    )


def _read_solutions(body: ScoreBody) -> tuple[Solution, ...]:
    if (body.solution is None) == (body.steps is None):
        raise RequestError("give either solution or steps", param="solution")
    name, given = ("solution", body.solution) if body.steps is None else ("steps", body.steps)
    texts = (
        [(name, given)]
        if isinstance(given, str)
        else [(f"{name}[{i}]", text) for i, text in enumerate(given)]
    )
    for param, text in texts or [(name, "")]:
        if not text.strip():
            raise RequestError(f"{param} is empty", hint="give some text", param=param)
    if body.steps is not None:
        return (Solution(name="steps", steps=tuple(body.steps)),)
    if len(texts) > MAX_CHOICES:
        raise RequestError(
            f"solution has {len(texts)} texts; at most {MAX_CHOICES} are scored at once",
            hint="send the others in further requests",
            param="solution",
        )
    return tuple(Solution(name=param, text=text) for param, text in texts)


def describe_scores(ask: ScoreAsk, found: Sequence[SolutionScores]) -> dict[str, Any]:
    """The body of the answer, in vLLM's form."""
    tokens = sum(one.tokens for one in found)
    return {
        "id": f"score-{secrets.token_hex(8)}",
        "object": "list",
        "created": int(time.time()),
        "model": ask.pair,
        "aggregate": ask.aggregate,
        "data": [
            {
                "index": index,
                "object": "score",
                "score": one.score,
                "step_scores": list(one.step_scores),
                "steps": list(one.steps),
                "tokens": one.tokens,
                "cached_tokens": one.cached_tokens,
            }
            for index, one in enumerate(found)
        ],
        "usage": {
            "prompt_tokens": tokens,
            "total_tokens": tokens,
            "prompt_tokens_details": {"cached_tokens": sum(one.cached_tokens for one in found)},
        },
    }
