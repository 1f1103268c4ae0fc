"""Boosting in the service: what a run gets, what its record says, and what ends it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import pytest_asyncio

from flashedge.answers.grouping import WordGroups
from flashedge.answers.workers.mathematics import MathGrader
from flashedge.errors import Conflict
from flashedge.events import RolloutsAllowed
from flashedge.runtime.request.request import Request
from flashedge.runtime.rollouts.boosting import DaemonTime
from flashedge.runtime.rollouts.replay import RunLog, replay
from tests.support.boost_rig import SPEC
from tests.support.rollout_rig import make_cost
from tests.support.service_rig import Rig, Serve, log_of

LONG = replace(SPEC, n=40, max_step_tokens=4)


@pytest_asyncio.fixture
async def rig(serve: Serve) -> Rig:
    made = await serve(max_running=2)
    made.served.rollout_cost = make_cost(0.0)
    # The engines' time is virtual. The daemon's own, which is not, would decide beside it.
    made.service._boosting._daemon = DaemonTime(lambda: 0)
    return made


async def count_boosts(rig: Rig, spec: Request) -> int:
    run = rig.service.submit(spec)
    await run.result()
    events = [event for _, event in await log_of(rig.service.run(run.id))]
    return sum(isinstance(e, RolloutsAllowed) and e.rollouts > 1 for e in events)


async def test_a_run_alone_is_boosted_and_its_stored_log_replays(rig: Rig) -> None:
    run = rig.service.submit(LONG)
    result = await run.result()
    assert result["deterministic"] is False
    await asyncio.sleep(1.0)
    log = RunLog.from_events(run.id, [e for _, e in await log_of(rig.service.run(run.id))])
    assert max(rollouts for _, rollouts in log.script) > 1
    grader = MathGrader()
    assert (await replay(log, grader, WordGroups())).find_difference(log) is None
    await grader.close()
    assert rig.service.scheduling.boosts == ()
    await rig.assert_idle()


async def test_who_does_not_ask_is_not_boosted(rig: Rig) -> None:
    assert await count_boosts(rig, replace(LONG, options={})) == 0
    assert await count_boosts(rig, LONG) > 0


async def test_runs_are_boosted_though_another_waits_for_their_end(rig: Rig) -> None:
    """Steps take the same time whatever the batch, so it comes in sooner."""
    runs = [rig.service.submit(replace(LONG, seed=seed)) for seed in range(3)]
    await asyncio.sleep(0.5)
    assert runs[2].estimate.position is not None
    [state] = rig.service.scheduling.boosts
    assert max(state.runs.values()) > 1
    await asyncio.gather(*(run.result() for run in runs))


async def test_a_cancelled_run_leaves_the_board(rig: Rig) -> None:
    run, other = rig.service.submit(LONG), rig.service.submit(replace(LONG, seed=1))
    await asyncio.sleep(0.2)
    run.cancel("enough")
    await other.result()
    await asyncio.sleep(1.0)
    assert rig.service.scheduling.boosts == ()
    await rig.assert_idle()


async def test_a_boosted_run_is_not_continued(rig: Rig) -> None:
    run = rig.service.submit(LONG)
    await run.result()
    await asyncio.sleep(1.0)
    with pytest.raises(Conflict, match="was boosted"):
        rig.service.submit(replace(LONG, token_budget=10_000), continues=run.id)
