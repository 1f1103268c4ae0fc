"""Whatever is cancelled, killed or slow: each admitted run ends once, and nothing is left."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashedge.errors import EngineDead, QueueFull
from flashedge.events import TERMINAL, RunFinished, RunStarted
from flashedge.runtime.records.store import RunStore
from flashedge.runtime.request.validation import Request
from flashedge.runtime.run import Run
from flashedge.types import Problem
from scripts.lab.sim.clock import run_virtual
from scripts.lab.sim.pair import Faults
from tests.support.runtime_rig import CONFIG, TIGHT, both, folded
from tests.support.service_rig import Rig, log_of
from tests.unit.runtime.test_run import FailingStore

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")

SPECS = st.builds(
    Request,
    problem=st.just(Problem.from_text("How many?")),
    pair=st.just("bundled"),
    strategy=st.sampled_from(["beam", "best_of_n"]),
    n=st.integers(1, 6),
    branching=st.integers(1, 4),
    aggregate=st.sampled_from(["last", "min", "prod", "mean"]),
    selection=st.sampled_from(["weighted", "majority", "best"]),
    seed=st.integers(0, 3),
    max_step_tokens=st.sampled_from([3, 256]),
    max_steps=st.integers(1, 8),
    max_path_tokens=st.sampled_from([5, 40, 2048]),
    token_budget=st.sampled_from([None, None, 1, 50]),
    deadline_s=st.sampled_from([None, None, 0.001, 0.03, 1.0]),
)
STEPS = st.one_of(
    st.tuples(st.just("submit"), SPECS),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.002, 0.011, 0.03, 0.4])),
    st.tuples(st.just("cancel"), st.integers(0, 9)),
    st.tuples(st.just("kill"), st.integers(0, 1)),
    st.tuples(st.just("budget"), st.integers(0, 1), st.floats(0, 1)),
)
FAULTS = st.builds(
    Faults,
    die_after_steps=st.frozensets(st.integers(1, 60), max_size=3),
    restart_s=st.sampled_from([0.01, 0.5, 500.0, None]),
    fail_requests=st.frozensets(st.integers(0, 30), max_size=4),
)


def make_rig(home: Path, data: st.DataObject) -> Rig:
    store: RunStore | None = None
    if fails_at := data.draw(st.sampled_from([None, None, None, 1, 3, 20]), "store fails at"):
        store = FailingStore(home / "failing.sqlite", fails_at)
    return Rig(
        home,
        store=store,
        config=data.draw(st.sampled_from([CONFIG, TIGHT]), "engines"),
        generator=data.draw(FAULTS, "generator"),
        verifier=data.draw(FAULTS, "verifier"),
        max_running=data.draw(st.integers(1, 3), "max_running"),
        queue_limit=data.draw(st.integers(0, 4), "queue_limit"),
    )


async def do(rig: Rig, runs: list[Run], step: Any) -> None:
    match step:
        case "submit", spec:
            try:
                runs.append(rig.service.submit(spec))
            except QueueFull:
                counts = rig.service.counts
                assert counts["queued"] >= rig.config.queue_limit
                # where memory is short, fewer than max_running run, and somebody waits
                assert counts["running"] == rig.config.max_running or counts["queued"]
                assert counts["running"] >= 1
            except EngineDead:
                assert rig.service.health().state == "failed"
        case "cancel", number if runs:
            runs[number % len(runs)].cancel("as the test says")
        case "kill", number:
            both(rig.engines)[number].kill("as the test says")
        case "budget", number, share:
            engine = both(rig.engines)[number]
            await engine.budget(round(share * engine.config.kv_bytes))
        case "wait", seconds:
            await asyncio.sleep(seconds)


async def check(rig: Rig, run: Run) -> None:
    """Its log is whole: it starts once, ends once, and tells the tree of its result."""
    log = await log_of(run)
    events = [event for _, event in log]
    assert [number for number, _ in log] == list(range(1, len(log) + 1))
    assert [event for event in events if isinstance(event, TERMINAL)] == events[-1:]
    assert sum(isinstance(event, RunStarted) for event in events) == (len(events) > 1)
    seen = folded(events[1:-1])
    end = events[-1]
    if isinstance(end, RunFinished):
        told = {node["id"]: node for node in end.result["tree"]["nodes"]}
        assert told.keys() - {0} == seen.keys()
        for node, at in seen.items():
            assert told[node]["status"] == at.status
            assert told[node]["token_ids"] == list(at.token_ids)
            assert told[node]["score"] == at.score
        assert run.status == "finished"
    if run.stored:
        archived = rig.service.run(run.id)
        assert archived is not run
        assert archived.object() == run.object()
        assert await log_of(archived) == log


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
@given(st.data())
def test_every_admitted_run_ends_once(data: st.DataObject) -> None:
    async def main(home: Path) -> None:
        rig = make_rig(home, data)
        await rig.service.start()
        runs: list[Run] = []
        for step in data.draw(st.lists(STEPS, min_size=3, max_size=14), "steps"):
            await do(rig, runs, step)
        if data.draw(st.booleans(), "stopped in the middle"):
            await rig.service.stop()
            for run in runs:
                assert run.object()["status"] in ("finished", "failed", "cancelled")
                assert [e for _, e in await log_of(run) if isinstance(e, TERMINAL)]
            await rig.assert_idle()
            return
        await asyncio.gather(*(run._over.wait() for run in runs))
        await rig.assert_idle()
        for run in runs:
            await check(rig, run)
        await rig.service.stop()

    with tempfile.TemporaryDirectory() as home:
        run_virtual(main(Path(home)))
