"""The equal-accuracy measurement on made-up runs whose savings are known."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flashedge.certainty.calibration import Ending, RunTrace
from flashedge.certainty.measures import ENTROPY, Checkpoint
from flashedge.files.problems import read_labelled
from scripts.bench.certainty.equal_accuracy import (
    EVEN,
    Candidate,
    build_report,
    describe,
    format_table,
    list_caps,
    propose_candidates,
)
from scripts.bench.certainty.whole_runs import read_traces, write_calibration_problems, write_traces
from tests.support.paths import DATA

N = 8
HELDOUT = DATA / "heldout.jsonl"


def trace(name: str, *, need: int, sure: bool, overhead: int = 0) -> RunTrace:
    """A run that is right from the progress `need` on and says whether it is sure from 2 on."""
    progress = range(1, N + 1)
    stops = tuple(Ending(right=k >= need, tokens=100 * k, overhead=overhead * k) for k in progress)
    sureness = [1.0 if sure and k > 1 else 0.0 for k in progress]
    checkpoints = tuple(
        Checkpoint(progress=k, tokens=100 * k, answers=k, measures={ENTROPY: value})
        for k, value in zip(progress, sureness, strict=True)
    )
    return RunTrace(problem=name, cap=N, checkpoints=checkpoints, stops=stops, whole=stops[-1])


def mixed(name: str, count: int, *, easy: bool = False) -> list[RunTrace]:
    """Every fourth run is hard: unsure, and right only at the end."""
    hard = [not easy and i % 4 == 0 for i in range(count)]
    return [trace(f"{name} {i}", need=N if h else 1, sure=not h) for i, h in enumerate(hard)]


def propose(runs: list[RunTrace], max_loss: float = 0.05) -> list[Candidate]:
    policies, caps = ("every_step", "static"), list_caps(runs)
    return propose_candidates(runs, policies, (4, N), (ENTROPY,), max_loss, caps)


CANDIDATES = propose(mixed("calibration", 80))


def report_on(
    heldout: Sequence[RunTrace], candidates: Sequence[Candidate] = CANDIDATES, **options: Any
) -> dict[str, Any]:
    return build_report(candidates, heldout, list_caps(heldout), **options)


def test_certainty_saves_where_runs_differ() -> None:
    report = report_on(mixed("heldout", 40), tie=0.0, draws=200)
    chosen = report["chosen"]
    assert (chosen["policy"], chosen["cap"]) == ("every_step", N)
    assert chosen["rule"]["thresholds"] == {ENTROPY: 1.0}
    assert chosen["accuracy"] == 1.0
    assert chosen["tokens"] == pytest.approx(0.75 * 200 + 0.25 * 800)
    assert (chosen["equal_even_cap"], chosen["equal_even_reached"]) == (N, True)
    assert chosen["saved"] == pytest.approx(1 - 350 / 800, abs=1e-4)
    low, high = chosen["saved_95"]
    assert low < chosen["saved"] < high
    assert [row["policy"] for row in report["rows"] if row["chosen"]] == ["every_step"]
    table = format_table(report["rows"])
    assert table.startswith("| policy | cap |")
    assert "| **every_step** | 8 | 100.0% | 350 | 8 | 100.0% | 800 | 56.2%" in table


def test_nothing_is_saved_where_fewer_paths_do_as_well() -> None:
    """Every run is right from the start: the even policy with one path is chosen."""
    candidates = propose(mixed("calibration", 80, easy=True))
    chosen = report_on(mixed("heldout", 40, easy=True), candidates, tie=0.0, draws=50)["chosen"]
    assert (chosen["policy"], chosen["cap"], chosen["rule"]) == (EVEN, 1, None)
    assert (chosen["saved"], chosen["saved_95"]) == (0.0, [0.0, 0.0])
    assert chosen["saved_against_n"] == pytest.approx(7 / 8)


def test_the_tie_rule_favours_the_even_policy() -> None:
    """Held-out runs of which 39 of 40 are right from the first path on."""
    heldout = [trace(f"heldout {i}", need=N if i == 0 else 1, sure=i > 0) for i in range(40)]
    strict = report_on(heldout, tie=0.0, draws=10)["chosen"]
    assert strict["equal_even_cap"] == N
    tied = report_on(heldout, tie=0.025, draws=10)["chosen"]
    assert (tied["equal_even_cap"], tied["equal_even_accuracy"]) == (1, 0.975)
    assert tied["saved"] < 0 < strict["saved"]


def test_too_few_calibration_problems_leave_the_even_policy_whole() -> None:
    (even,) = propose(mixed("calibration", 20), max_loss=0.01)
    assert (even.policy, even.cap, describe(even.rule)) == (EVEN, N, None)


def test_probes_count_as_spent() -> None:
    heldout = [trace(f"h{i}", need=1, sure=True, overhead=10) for i in range(8)]
    chosen = report_on(heldout, tie=0.0, draws=10)["chosen"]
    assert chosen["tokens"] == 220
    assert chosen["equal_even_tokens"] == 100  # the even policy makes no probes


def test_traces_go_through_the_cache(tmp_path: Path) -> None:
    runs = (trace("a", need=2, sure=True, overhead=3), trace("b", need=9, sure=False))
    write_traces(tmp_path / "runs" / "traces.jsonl", runs)
    assert read_traces(tmp_path / "runs" / "traces.jsonl") == runs


def test_calibration_problems_are_not_held_out(tmp_path: Path) -> None:
    path = tmp_path / "calibration.jsonl"
    write_calibration_problems(path, 300, HELDOUT)
    texts = [problem.text for problem in read_labelled(path)]
    assert len(texts) == len(set(texts)) == 300
    assert not set(texts) & {problem.text for problem in read_labelled(HELDOUT)}


def test_the_even_policy_is_compared_at_the_given_caps_only() -> None:
    """A run of REBASE that is ended within a tree has paid for all of it."""
    rows = build_report(CANDIDATES, mixed("heldout", 40), [4, N], tie=1.0, draws=5)["rows"]
    assert {row["equal_even_cap"] for row in rows} == {4}
