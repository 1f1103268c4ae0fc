"""What `calibrate` writes, keeps and refuses, on made-up recordings and without a daemon."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from flashedge import events
from flashedge.certainty.calibration import Calibrator
from flashedge.certainty.measures import ENTROPY, Checkpoint
from flashedge.certainty.policies import Rule
from flashedge.cli import calibrate as command
from flashedge.cli.calibrate import build_frontier, describe_rule, run_problems
from flashedge.cli.main import app
from flashedge.config import Config, load_config
from flashedge.errors import Conflict, RequestError
from flashedge.files.problems import LabelledProblem
from flashedge.runtime.records.recordings import Recording
from flashedge.runtime.request import calibrations as stored_rules
from flashedge.runtime.request.calibrations import load_calibrations, locate_calibrations
from flashedge.runtime.request.validation import Request
from flashedge.types import Problem
from tests.support.cli_rig import Patch, with_daemon
from tests.support.fake_daemon import BatchDaemon, encode_events

N = 8
SETTINGS = {"aggregate": "last"}


def recorded(problem: LabelledProblem, *, sure: bool) -> Recording:
    """A run that agrees from the start (`sure`), or that finds the right answer only at the end."""
    checkpoints = tuple(
        Checkpoint(
            progress=k,
            tokens=100 * k,
            answers=k,
            measures={ENTROPY: 1.0 if sure and k > 1 else 0.0},
            answer=problem.answer if sure or k == N else "0",
        )
        for k in range(1, N + 1)
    )
    return Recording(
        run=str(problem.id),
        problem=problem.text,
        answer=problem.answer,
        cap=N,
        tokens=100 * N,
        probe_tokens=(),
        settings=SETTINGS,
        checkpoints=checkpoints,
    )


def make_up_runs(monkeypatch: Patch, *, hard: int) -> None:
    """A daemon whose runs are made up: the first of so many problems is hard, none if 0."""

    def collect(problems: Sequence[LabelledProblem], *_: Any) -> Any:
        runs = tuple(recorded(p, sure=hard == 0 or p.index % hard > 0) for p in problems)
        return "bundled", "f" * 16, runs

    monkeypatch.setattr(command, "_collect_runs", collect)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: Patch) -> Config:
    monkeypatch.setenv("FLASHEDGE_HOME", str(tmp_path))
    make_up_runs(monkeypatch, hard=4)
    return load_config(environ={"FLASHEDGE_HOME": str(tmp_path)})


def calibrate(folder: Path, count: int, *options: str, policy: str | None = "every_step") -> Result:
    """The command over `count` problems. policy: None gives no option."""
    path = folder / f"{count}.jsonl"
    rows = [{"problem": f"What is {i} + 1?", "answer": i + 1} for i in range(count)]
    path.write_text("\n".join(map(json.dumps, rows)))
    rule = () if policy is None else ("--policy", policy)
    return CliRunner().invoke(app, ["calibrate", str(path), *rule, *options])


def test_a_rule_that_qualifies_is_written(home: Config, tmp_path: Path) -> None:
    made = calibrate(tmp_path, 300, "--json")
    assert made.exit_code == 0, made.output
    report = json.loads(made.stdout)
    assert (report["outcome"], report["saved"]) == ("written", str(locate_calibrations(home)))
    assert report["rule"] == {"policy": "every_step", "detect": 2, "thresholds": [["entropy", 1.0]]}
    chosen = report["provenance"]["chosen"]
    assert chosen["loss_bound"] <= 0.01
    assert chosen["saved"] == pytest.approx(0.75 * 6 / 8)
    assert report["provenance"]["smaller_cap"] is None  # no smaller cap keeps accuracy
    (stored,) = load_calibrations(home)
    assert (stored.num_problems, stored.loss_bound) == (300, chosen["loss_bound"])
    assert stored.saved == chosen["saved"]


def test_too_few_problems_are_refused(home: Config, tmp_path: Path) -> None:
    few = calibrate(tmp_path, 298).exception
    assert isinstance(few, RequestError)
    assert "298 distinct problems are too few: it takes 299" in str(few)
    for said in ("give 1 more", "--max-loss 0.05 needs 59"):
        assert said in str(few.hint)
    assert not locate_calibrations(home).exists()
    looser = calibrate(tmp_path, 59, "--max-loss", "0.05")
    assert looser.exit_code == 0, looser.output
    assert load_calibrations(home)[0].num_problems == 59


def test_a_better_calibration_stays(home: Config, tmp_path: Path) -> None:
    assert calibrate(tmp_path, 320).exit_code == 0
    text = locate_calibrations(home).read_text()
    kept = calibrate(tmp_path, 300)
    assert isinstance(kept.exception, Conflict)
    assert "320 problems" in str(kept.exception)
    assert "--replace" in str(kept.exception.hint)
    for said in ("stored (320 problems)", "chosen", "stored rule: every_step from 2 on"):
        assert said in kept.stdout
    assert locate_calibrations(home).read_text() == text
    assert json.loads(calibrate(tmp_path, 300, "--json").stdout)["outcome"] == "kept_stored"
    assert calibrate(tmp_path, 300, "--dry-run").exit_code == 0
    assert locate_calibrations(home).read_text() == text
    assert calibrate(tmp_path, 300, "--replace").exit_code == 0
    assert load_calibrations(home)[0].num_problems == 300


def test_a_calibration_without_a_bound_is_replaced(home: Config, tmp_path: Path) -> None:
    key = {"pair": "bundled", "strategy": "self_consistency", "fingerprint": "f" * 16}
    origin = {"num_problems": 9000, "chosen": {"saved": 0.99}}
    old = stored_rules.Calibration(**key, settings=SETTINGS, rule=None, provenance=origin)
    stored_rules.save_calibration(old, home)
    assert load_calibrations(home)[0].loss_bound is None
    assert calibrate(tmp_path, 300).exit_code == 0
    assert load_calibrations(home)[0].num_problems == 300


def test_no_rule_qualifies(home: Config, tmp_path: Path, monkeypatch: Patch) -> None:
    """Every run is right from the start: a smaller n saves as much as any rule."""
    assert calibrate(tmp_path, 300).exit_code == 0
    text = locate_calibrations(home).read_text()
    make_up_runs(monkeypatch, hard=0)
    none = calibrate(tmp_path, 400)
    assert none.exit_code == 0
    for said in ("no rule qualifies: runs keep their full length", "smaller cap: n 1"):
        assert said in none.stdout
    assert "-n 1 saves 87.5%" in " ".join(none.stderr.split())
    report = json.loads(calibrate(tmp_path, 400, "--json", policy=None).stdout)
    assert (report["outcome"], report["rule"]) == ("no_rule_qualifies", None)
    assert report["provenance"]["smaller_cap"]["cap"] == 1
    assert locate_calibrations(home).read_text() == text


TEXT = "right 12"
SPEC = Request(
    problem=Problem.from_text(TEXT), pair="bundled", strategy="self_consistency", n=4
).to_json()
STORY: list[events.Event] = [
    events.RunStarted(config=SPEC, queue_s=0.0),
    events.CertaintyUpdated(certainty=1.0, answers=4, progress=4, tokens=10, answer="12"),
    events.RunFinished(result={"answer": "12", "usage": {"tree_tokens": 10}}),
]


class LeavingDaemon(BatchDaemon):
    """Its first stream of events breaks."""

    streams = 0

    def send_events(self, run: str, after: int) -> Any:
        self.streams += 1
        if self.streams == 1:
            raise httpx.ReadError("gone")
        return httpx.Response(200, content=encode_events(list(enumerate(STORY, 1))[after:]))


def test_a_stream_that_breaks_is_read_again(monkeypatch: Patch) -> None:
    daemon = LeavingDaemon()
    with_daemon(monkeypatch, daemon)
    problem = LabelledProblem(index=0, id="p", text=TEXT, answer="12")
    settings = {"strategy": "self_consistency", "n": 4}
    (recording,) = run_problems((problem,), settings, "work", load_config(environ={}))
    assert (recording.problem, recording.answer, recording.tokens) == (TEXT, "12", 10)
    assert daemon.streams == 2


def test_rules_in_words_and_a_frontier_that_ends_at_full_compute() -> None:
    rule = Rule(policy="static", detect=3, thresholds=(("entropy", 0.75), ("reward", 0.5)))
    words = "static from 3 on: entropy at least 0.75 and reward at least 0.5"
    assert (describe_rule(rule), describe_rule(None)) == (words, "none")
    problems = [LabelledProblem(index=i, id=i, text=str(i), answer="7") for i in range(30)]
    runs = [recorded(problem, sure=problem.index % 3 > 0) for problem in problems]
    traces = [run.build_trace(frozenset({"7"})) for run in runs]
    series = build_frontier(Calibrator(traces, "every_step", (ENTROPY,)).choose(0.3))
    assert series["even"][-1] == (100 * N, 1.0)
    assert [tokens for tokens, _ in series["even"][:-1]] == [100.0 * k for k in range(1, N)]
    ((tokens, accuracy),) = series["chosen"]
    assert (accuracy, tokens < 100 * N) == (1.0, True)
    assert (tokens, accuracy) in series["rules"]
