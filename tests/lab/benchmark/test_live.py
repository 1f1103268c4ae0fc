"""The order of a benchmark's runs."""

from __future__ import annotations

from flashedge.files.problems import FileProblem
from scripts.lab.benchmark.ladder import find_rungs
from scripts.lab.benchmark.live import BenchPlan


def test_rounds_alternate_between_the_rungs() -> None:
    """A B A B: what drifts on the machine meets every rung."""
    plan = BenchPlan(
        rungs=find_rungs(["suffix"]),
        problems=tuple(FileProblem(index=i, id=i, text=f"{i}?") for i in range(2)),
        widths=(4,),
        kv={"plan": None},
        rounds=2,
    )
    assert plan.runs == 8
    assert [(key.round, key.rung, key.problem) for key in plan.keys] == [
        (number, rung, problem)
        for number in (0, 1)
        for rung in ("stock", "suffix")
        for problem in (0, 1)
    ]
