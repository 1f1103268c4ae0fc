"""What the service tells of its runs while they wait: in real searches on simulated engines."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from math import exp, log
from random import Random
from statistics import mean, median, pstdev

import pytest

from flashedge.runtime.programs.scheduler import KEPT_S
from flashedge.runtime.service import Service
from flashedge.scheduling.programs import estimates
from flashedge.scheduling.programs.estimates import RunEstimate
from tests.support.length_rig import LogNormal
from tests.support.runtime_rig import BEAM, BEST
from tests.support.service_rig import Serve, ended


@pytest.fixture(autouse=True)
def _quick_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulated searches take a tenth of a second each."""
    monkeypatch.setattr(estimates, "LEAST_S", 0.05)


async def measure_lengths(service: Service) -> LogNormal:
    run = service.submit(replace(BEST, n=32, seed=99))
    result = await run.result()
    await asyncio.sleep(0.01)
    logs = [log(len(path["token_ids"])) for path in result["completions"]]
    return LogNormal(mu=mean(logs), sigma=pstdev(logs))


@pytest.mark.parametrize("max_running", [1, 4])
async def test_runs_start_about_when_they_are_expected_to(serve: Serve, max_running: int) -> None:
    """Half of the estimates are within a quarter of the time that is left."""
    rig = await serve(max_running=max_running, queue_limit=100)
    clock = asyncio.get_running_loop().time
    rig.service.scheduler("bundled")._clock = clock  # virtual, like the searches
    lengths = await measure_lengths(rig.service)
    draw = Random(3)
    specs = [
        replace(draw.choice([BEAM, BEST]), n=draw.choice([4, 8, 16, 32]), seed=seed)
        for seed in range(24)
    ]
    runs = [rig.service.submit(spec) for spec in specs]
    for run in runs:
        rig.service.scheduler("bundled").predict(run.id, lengths)
    expected: list[tuple[str, float, float]] = []
    started: dict[str, float] = {}
    while len(started) < len(runs):
        for run in runs:
            if run.status != "queued":
                started.setdefault(run.id, clock())
            elif (start_s := run.estimate.starts_in_s) is not None:
                expected.append((run.id, clock(), start_s))
        await asyncio.sleep(0.01)
    left = [(start_s, started[run] - at_s) for run, at_s, start_s in expected]
    errors = [abs(start_s - real_s) / real_s for start_s, real_s in left if real_s > 0.05]
    assert len(errors) > 100
    assert median(errors) < 0.25


async def test_an_estimate_is_at_most_a_moment_old(serve: Serve) -> None:
    rig = await serve(queue_limit=9)
    lengths = await measure_lengths(rig.service)
    first, second, third = (rig.service.submit(replace(BEAM, n=64, seed=seed)) for seed in range(3))
    assert [run.estimate.position for run in (first, second, third)] == [None, 0, 1]
    assert second.estimate.median_tokens is None
    rig.service.scheduler("bundled").predict(second.id, lengths)
    await asyncio.sleep(KEPT_S)
    assert second.estimate.median_tokens == pytest.approx(exp(lengths.mu), abs=1)
    second.cancel("enough")
    await asyncio.sleep(0)
    assert third.estimate.position == 0, "a change of the queue shows at once"
    await ended(first)
    assert first.estimate == RunEstimate()
