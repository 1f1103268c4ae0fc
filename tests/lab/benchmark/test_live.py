"""The benchmark on real engines: the order of its runs, their times, and how problems compare."""

from dataclasses import replace
from itertools import count, product
from typing import Any

import pytest

from flashedge import events
from flashedge.client.sync_client import Client
from flashedge.errors import ConfigError, RequestError
from flashedge.files.problems import FileProblem
from scripts.lab.benchmark.ladder import find_rungs
from scripts.lab.benchmark.live import (
    BenchPlan,
    LiveRun,
    RunKey,
    compare_runs,
    digest_tree,
    parse_budget,
    time_run,
)
from tests.lab.load_rig import build_live_run
from tests.support.fake_daemon import FakeDaemon
from tests.support.made_run import build_result, build_usage
from tests.support.story import STORY

NODES: list[dict[str, Any]] = [
    {"id": 0, "parent": None, "token_ids": [], "score": None, "status": "active"},
    {"id": 1, "parent": 0, "token_ids": [5, 6], "score": 0.5, "status": "complete"},
]
RESULT = build_result(
    answer="19",
    completions=[{"node": 3, "token_ids": [1] * 8}, {"node": 4, "token_ids": [1] * 4}],
    tree={"nodes": NODES},
    usage=build_usage(verifier_tokens=40, verifier_cached_tokens=30),
    timing={"queue_s": 1.0, "generate_s": 0.4, "verify_s": 0.1, "total_s": 0.5},
)
RUN = build_live_run()


def run_of(daemon: FakeDaemon) -> LiveRun:
    clock = count()
    which = RunKey(rung="suffix", kv="plan", n=4, problem=7, round=0)
    with Client("http://daemon", transport=daemon) as client:
        return time_run(client, {"problem": "2 + 2?"}, which, lambda: float(next(clock)))


# ---------------------------------------------------------------- one


def test_time_counts_from_the_runs_start_and_goodput_from_each_completion() -> None:
    """The clock ticks once a look: 1 at the start, completions at 2 and 3, the end at 4."""
    completions = [events.NodesMarked(status="complete", nodes=(node,)) for node in (3, 4)]
    run = run_of(FakeDaemon([STORY[0], *completions, events.RunFinished(result=RESULT)]))
    assert run.seconds == 3
    assert run.goodput == pytest.approx(((8 + 4) / 2) / ((1 + 2) / 2))
    assert (run.generate_s, run.verify_s, run.reuse) == (0.4, 0.1, 0.75)
    assert (run.problem, run.rung, run.answer, run.kept_steps) == (7, "suffix", "19", 2)


def test_a_run_that_fails_is_an_error() -> None:
    failed = events.RunFailed(error="gone", code="engine_dead", hint=None)
    with pytest.raises(Exception, match="gone"):
        run_of(FakeDaemon([STORY[0], failed]))
    with pytest.raises(RequestError, match="cancelled: by hand"):
        run_of(FakeDaemon([STORY[0], events.RunCancelled(reason="by hand")]))


def test_the_digest_tells_different_trees_apart() -> None:
    for change in ({"token_ids": [5, 7]}, {"score": 0.25}, {"status": "pruned"}, {"parent": None}):
        other = [NODES[0], {**NODES[1], **change}]
        assert digest_tree({"nodes": NODES}) != digest_tree({"nodes": other}), change
    same = [dict(n, text="x") for n in NODES]
    assert digest_tree({"nodes": NODES}) == digest_tree({"nodes": same})


# ---------------------------------------------------------------- many


def test_gains_compare_the_same_problem_by_medians_of_rounds() -> None:
    runs = [
        *(replace(RUN, round=n, goodput=g) for n, g in enumerate((10.0, 30.0, 20.0))),
        replace(RUN, problem=1, goodput=100.0, tree="bb"),
        replace(RUN, rung="suffix", goodput=40.0, seconds=1.0, verify_s=0.25),
        replace(RUN, rung="suffix", problem=1, goodput=100.0, tree="cc", answer="18"),
    ]
    stock, suffix = compare_runs(runs, {(0, "19"): True, (1, "19"): True, (1, "18"): False})
    assert (stock["problems"], stock["latency_s"], stock["right"]) == (2, 2.0, 1.0)
    names = ("value", "low", "high", "median", "median_low", "median_high")
    assert stock["goodput_gain"] == dict.fromkeys(names, 1.0)
    assert suffix["goodput_gain"]["value"] == pytest.approx((40 / 20 + 100 / 100) / 2)
    assert suffix["speedup"]["value"] == pytest.approx((2 + 1) / 2)
    assert suffix["verifier_share"]["value"] == pytest.approx((0.25 + 1) / 2)
    assert suffix["gain_over_suffix"] == dict.fromkeys(names, 1.0)
    assert stock["gain_over_suffix"]["value"] == pytest.approx((20 / 40 + 100 / 100) / 2)
    assert (suffix["same_trees"], suffix["right"]) == (0.5, 0.5)


def test_budgets_and_widths_are_compared_separately() -> None:
    runs = [RUN, replace(RUN, n=16), replace(RUN, kv="8MiB"), replace(RUN, rung="+P", goodput=5.0)]
    rows = {(r["kv"], r["n"], r["rung"]): r for r in compare_runs(runs, {})}
    assert rows["plan", 4, "+P"]["goodput_gain"]["value"] == 0.5
    assert rows["plan", 16, "stock"]["goodput_gain"]["value"] == 1
    assert len(rows) == 4
    # a rung without its stock runs has no gain
    (row,) = compare_runs([replace(RUN, rung="+P")], {})
    names = ("goodput_gain", "gain_over_suffix", "same_trees", "right")
    assert [row[name] for name in names] == [None] * 4


# ---------------------------------------------------------------- what can be run


def test_budgets_are_parsed() -> None:
    assert parse_budget("plan") == ("plan", None)
    assert parse_budget("64MiB") == ("64MiB", 64 << 20)
    for text in ("64", "MiB", "-1MiB", "x"):
        with pytest.raises(ConfigError, match="no size"):
            parse_budget(text)


def test_rounds_alternate_between_the_rungs() -> None:
    """A B A B: what drifts on the machine meets every rung."""
    problems = tuple(FileProblem(index=i, id=i, text=f"{i}?") for i in range(2))
    rungs = find_rungs(["suffix"])
    plan = BenchPlan(rungs=rungs, problems=problems, widths=(4,), kv={"plan": None}, rounds=2)
    keys = [(key.round, key.rung, key.problem) for key in plan.keys]
    assert keys == list(product((0, 1), ("stock", "suffix"), (0, 1)))
