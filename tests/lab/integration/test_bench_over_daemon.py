"""The bench's daemons, one for each setting of the switches; their engines are simulated."""

from pathlib import Path

import pytest

from flashedge.config import load_config
from flashedge.daemon.files import find_holder
from flashedge.files.problems import FileProblem
from scripts.lab.benchmark.ladder import find_rungs
from scripts.lab.benchmark.live import BenchPlan, LiveRun, compare_runs, run_plan
from tests.support.commands import SIMULATED


def test_each_rung_is_run_and_builds_the_same_trees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHEDGE_HOME", str(tmp_path))
    config = load_config()
    asked = [FileProblem(index=i, id=i, text=f"How many are left of {i}?") for i in range(3)]
    rungs, problems = find_rungs(["suffix"]), tuple(asked)
    course = BenchPlan(rungs=rungs, problems=problems, widths=(4,), kv={"plan": None}, rounds=1)
    said: list[str] = []
    runs: list[LiveRun] = []
    run_plan(course, config, said.append, runs.append, command=SIMULATED)
    assert len(runs) == len(course.keys) == 6
    assert len(said) == 2  # a daemon for each rung
    assert [run.key for run in runs] == list(course.keys)
    assert {(r.rung, r.problem, r.round) for r in runs} == {
        (name, problem, 0) for name in ("stock", "suffix") for problem in range(3)
    }
    rows = {row["rung"]: row for row in compare_runs(runs, {})}
    assert all(row["same_trees"] == 1 for row in rows.values())
    assert rows["suffix"]["problems"] == 3
    assert all(run.goodput > 0 and run.seconds >= run.generate_s for run in runs)
    assert find_holder(config) is None
    missing = runs.pop(4)
    done = {run.key for run in runs}
    run_plan(course, config, said.append, runs.append, kept=done, command=SIMULATED)
    assert (runs[-1].key, runs[-1].tree) == (missing.key, missing.tree)
    assert len(runs) == 6  # what was kept is not run again
    assert len(said) == 3
    assert not (tmp_path / "state").exists()  # the user's own state is left alone
