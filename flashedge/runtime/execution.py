"""Runs one search on its pair, from its first request to its result."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from flashedge.answers.grouping import TextGroups
from flashedge.answers.workers.mathematics import MathGrader
from flashedge.runtime.drive.driver import Driver
from flashedge.runtime.drive.earlier_run import EarlierRun
from flashedge.runtime.records.result import build_result
from flashedge.runtime.rollouts.boosting import Boosting
from flashedge.runtime.run import Run
from flashedge.runtime.run_state import RunState
from flashedge.runtime.served_pair import ServedPair
from flashedge.search.base import Search
from flashedge.types import Timing, TokenIds, Usage


@dataclass(frozen=True, slots=True)
class Job:
    """A run that was submitted, and what it takes to run it."""

    run: Run
    pair: ServedPair
    search: Search[Any]
    prompt_ids: TokenIds
    earlier: EarlierRun


@dataclass(frozen=True, slots=True)
class Tools:
    """What serves all runs of the daemon."""

    grader: MathGrader
    texts: TextGroups
    boosting: Boosting

    @property
    def timed_out(self) -> int:
        """Comparisons of answers that a time limit decided so far, in all runs."""
        return self.grader.timed_out + self.texts.timed_out


async def execute(job: Job, tools: Tools, state: RunState, program: str) -> dict[str, Any]:
    """Run a search whose turn has come. Returns its result. Raises what ends the run.

    program: the key that its requests to the engines carry.
    """
    run, pair, prompt_ids = job.run, job.pair, job.prompt_ids
    queue_s, began = run.mark_started(), time.monotonic()
    request, prompt_tokens, timed_out = run.plan.request, len(prompt_ids), tools.timed_out
    engines = pair.build_engines(tools.grader, tools.texts, baseline=request.baseline)
    engines = replace(engines, program=program)
    with engines.join_kv(run.emit, prompt_tokens) as memory:
        driver = Driver(
            job.search, request, prompt_ids, engines, run.emit, job.earlier, memory.follow
        )
        with tools.boosting.join(state, pair, driver.allow):
            outcome = await driver.run()
    usage = Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=len(outcome.tree.path_token_ids(outcome.finish.choice)),
        tree_tokens=outcome.tree.committed_tokens,
        speculation=driver.speculation,
        verifier_tokens=driver.scoring.tokens,
        verifier_cached_tokens=driver.scoring.cached_tokens,
        probe_tokens=driver.probe_tokens,
        cancelled_tokens=driver.cancelled_tokens,
    )
    timing = Timing(
        queue_s=queue_s,
        generate_s=driver.generating.seconds,
        verify_s=driver.scoring.waiting.seconds,
        total_s=time.monotonic() - began,
    )
    result = build_result(
        run.id,
        run.plan,
        outcome,
        usage,
        timing,
        self_test=pair.health().self_test,
        thinking=driver.thinking,
        scores_probability=pair.scores_probability,
        timed_out_comparisons=tools.timed_out - timed_out,
    )
    return {**result, "kv": memory.record}
