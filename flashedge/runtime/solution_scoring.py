"""Scores solutions outside any run, by the verifier of a loaded pair.

The solutions of a request are scored together, so that the KV of their problem is computed once. A
solution gets the steps and the score that a search of the pair would give the same text. A request
with a solution beyond the verifier's context is refused, while a search would give that path 0.
"""

import asyncio
import secrets
from dataclasses import dataclass

from flashedge.engine.base import ScoreRequest
from flashedge.engine.http_requests import Follow, PlainRequest
from flashedge.errors import ContextOverflow, DaemonStopping, PathOverflow
from flashedge.runtime.drive.tasks import raise_first_error
from flashedge.runtime.metrics import Metrics
from flashedge.runtime.request.plan import check_shapes
from flashedge.runtime.served_pair import ServedPair
from flashedge.scheduling.programs.program import Caller
from flashedge.search.aggregates import aggregate
from flashedge.types import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """A solution to score. If it has steps, its text is not used."""

    name: str
    """The request's field that holds it, for errors."""
    text: str = ""
    steps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreAsk:
    """A request to score solutions of one problem."""

    pair: str
    problem: Problem
    solutions: tuple[Solution, ...]
    aggregate: str
    """One of `values.AGGREGATES`."""
    deterministic: bool = False
    """Whether the scores must not depend on what else the verifier computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SolutionScores:
    """What the verifier found for one solution."""

    steps: tuple[str, ...]
    """What the verifier judged one by one. Empty for a solution without an answer."""
    step_scores: tuple[float, ...]
    """(len(steps),) in [0, 1]"""
    score: float
    """The aggregate of `step_scores`, 0 without any."""
    tokens: int
    """Tokens of the verifier's prompt."""
    cached_tokens: int
    """Those of `tokens` whose KV was reused."""


async def score_solutions(
    pair: ServedPair, ask: ScoreAsk, caller: Caller, metrics: Metrics
) -> tuple[SolutionScores, ...]:
    """Score the solutions, in their order. Raises ContextOverflow naming the field that is too
    long, RequestError, QueueFull, EngineError, and DaemonStopping when the daemon stops."""
    if ask.deterministic:
        await pair.wait_tested()
        check_shapes(pair.health().self_test)
    task = asyncio.current_task()
    assert task is not None

    async def abort() -> None:
        task.cancel()

    async def score(solution: Solution, follow: Follow) -> SolutionScores:
        found = await _score_solution(pair, ask, solution, plain.program)
        follow(found.tokens, 0, ("stop",))
        metrics.observe_score(tokens=found.tokens, cached_tokens=found.cached_tokens)
        return found

    plain = PlainRequest(
        program=caller.program or f"score-{secrets.token_hex(6)}",
        pair=pair.name,
        client=caller.client,
        priority=caller.priority,
        choices=len(ask.solutions),
        max_tokens=1,
        is_score=True,
    )
    tasks = []
    try:
        with pair.plain.open(plain, abort) as follow, raise_first_error():
            async with asyncio.TaskGroup() as group:
                for solution in ask.solutions:
                    tasks.append(group.create_task(score(solution, follow)))
                    await asyncio.sleep(0)  # others go on between the tokenizations
    except asyncio.CancelledError:
        if pair.plain.is_stopping:
            raise DaemonStopping.for_request() from None
        raise
    return tuple(task.result() for task in tasks)


async def _score_solution(
    pair: ServedPair, ask: ScoreAsk, solution: Solution, program: str
) -> SolutionScores:
    steps = pair.list_judged(solution.text, solution.steps)
    if not steps:
        return SolutionScores(steps=(), step_scores=(), score=0.0, tokens=0, cached_tokens=0)
    request = ScoreRequest(
        problem=ask.problem, steps=steps, program=program, deterministic=ask.deterministic
    )
    try:
        found = await pair.score(request)
    except ContextOverflow as error:
        param = solution.name if isinstance(error, PathOverflow) else "problem"
        raise ContextOverflow(str(error), hint=f"shorten {param}", param=param) from error
    return SolutionScores(
        steps=steps,
        step_scores=found.scores,
        score=aggregate(found.scores, ask.aggregate),
        tokens=found.tokens,
        cached_tokens=found.cached_tokens,
    )
