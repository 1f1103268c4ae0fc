"""`calibrate` as users run it, against a daemon process whose engines are simulated."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from flashedge.config import Config
from flashedge.runtime.request.calibrations import (
    Calibration,
    locate_calibrations,
    save_calibration,
)
from tests.support.commands import cli, list_runs, start_cli, wait_for

# One process starts the shared daemon.
pytestmark = pytest.mark.xdist_group("calibrate")


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    path = tmp_path / "left.jsonl"
    lines = [{"id": i, "problem": f"What is left of {i}?", "answer": i % 10} for i in range(12)]
    lines.append({**lines[0], "id": "again"})  # the same problem counts once
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def done(*arguments: str) -> dict[str, Any]:
    found = cli("calibrate", *arguments, "--json")
    assert found.returncode == 0, found.stderr
    return dict(json.loads(found.stdout))


def test_a_calibration_is_used_until_the_pair_changes(
    daemon: subprocess.Popen[bytes], config: Config, problems: Path, tmp_path: Path
) -> None:
    picture = tmp_path / "frontier.svg"
    command = (str(problems), "--strategy", "self_consistency-6", "--max-loss", "0.5")
    dry = done(*command, "--dry-run", "--limit", "5")
    assert (dry["saved"], dry["provenance"]["num_problems"]) == (None, 5)
    assert not locate_calibrations(config).exists()
    assert len(list_runs("finished")) == 5
    made = done(*command, "--plot", str(picture))
    assert len(list_runs("finished")) == 12  # the five were not run again
    origin = made["provenance"]
    assert origin["problems"]["name"] == problems.name
    assert (origin["n"], origin["num_problems"], origin["max_loss"]) == (6, 12, 0.5)
    assert origin["validated"]["accuracy_before"] == origin["chosen"]["accuracy_before"]
    assert "<svg" in picture.read_text()
    # The simulated model answers at random, so certainty says nothing.
    assert (made["outcome"], made["saved"], made["rule"]) == ("no_rule_qualifies", None, None)
    assert not locate_calibrations(config).exists()

    rule = {"policy": "every_step", "detect": 2, "thresholds": [["entropy", 0.0]], "curve": []}
    fields = {key: made[key] for key in ("pair", "strategy", "fingerprint", "settings")}
    calibration = Calibration.from_json({**fields, "rule": rule, "provenance": origin})
    save_calibration(calibration, config)
    solve = ("solve", "What is left of 3?", "--json", "--strategy", "self_consistency-6")
    run = json.loads(cli(*solve, "--early-exit").stdout)
    assert run["early_exit_source"] == "calibration"
    assert len(run["completions"]) == 2
    run = json.loads(cli(*solve, "--set", "early_exit.detect=2").stdout)
    assert run["early_exit_source"] == "request"
    stored = json.loads(locate_calibrations(config).read_text())
    del stored["calibrations"][0]["provenance"]["chosen"]["loss_bound"]
    locate_calibrations(config).write_text(json.dumps(stored))
    assert "made without a bound: calibrate again" in cli("doctor").stdout
    stored["calibrations"][0]["fingerprint"] = "0" * 16
    locate_calibrations(config).write_text(json.dumps(stored))
    run = json.loads(cli(*solve, "--early-exit").stdout)
    assert run["early_exit_source"] == "defaults"
    assert "the pair bundled has changed since" in run["early_exit_note"]
    plain = ("solve", "What is left of 3?", "--strategy", "self_consistency-6", "--early-exit")
    assert "has changed since" in " ".join(cli(*plain).stderr.split())
    report = cli("doctor").stdout
    assert "self_consistency on bundled" in report
    assert "not used: the pair has changed since" in report


@pytest.mark.long
def test_rebase_is_calibrated_in_the_trees_that_it_exits_between(
    shared_daemon: subprocess.Popen[bytes], problems: Path
) -> None:
    """It takes 20 s."""
    command = ("--strategy", "rebase-20", "--limit", "6", "--max-loss", "0.5")
    made = done(str(problems), *command)
    assert made["settings"]["options"] == {"width": 16}


MORE = ("best_of_n-4", "rebase-4", "dvts-4", "probed_cot")


@pytest.mark.parametrize(
    "strategy", ["mcts-3", "beam-4", *(pytest.param(s, marks=pytest.mark.long) for s in MORE)]
)
def test_every_strategy(
    shared_daemon: subprocess.Popen[bytes], problems: Path, strategy: str
) -> None:
    """Each takes 5 s."""
    command = ("--strategy", strategy, "--limit", "6", "--max-loss", "0.5")
    made = cli("calibrate", str(problems), *command)
    assert made.returncode == 0, made.stderr
    assert [w for w in ("rule: ", "cross-validated", "uncalibrated") if w not in made.stdout] == []
    assert ("wrote " in made.stdout) != ("no rule qualifies" in made.stdout)


def test_stored_runs_of_the_problems_are_used(
    daemon: subprocess.Popen[bytes], problems: Path
) -> None:
    command = (str(problems), "--from-runs", "--strategy", "beam-4", "--max-loss", "0.5")
    none = cli("calibrate", *command)
    assert none.returncode == 2
    assert "no run of beam-4 on bundled at full compute" in none.stderr

    def solve(problem: int, *extra: str) -> None:
        text = f"What is left of {problem}?"
        solved = cli("solve", text, "-q", "--strategy", "beam-4", *extra)
        assert solved.returncode == 0, solved.stderr

    for problem in (0, 1, 2, 3, 99):
        solve(problem)
    solve(0, "--seed", "1")
    solve(4, "--early-exit")
    few = cli("calibrate", *command)
    assert "4 distinct problems are too few: it takes 5" in few.stderr  # the last three don't count
    solve(4)
    made = done(*command, "--policy", "every_step")["provenance"]
    assert (made["origin"], made["num_problems"]) == ("runs", 5)


def test_ctrl_c_keeps_what_is_finished(daemon: subprocess.Popen[bytes], tmp_path: Path) -> None:
    problems = tmp_path / "many.jsonl"
    problems.write_text("\n".join(f'{{"problem": "p {i}?", "answer": 1}}' for i in range(400)))
    process = start_cli("calibrate", str(problems), "--strategy", "best_of_n-64")
    wait_for(lambda: list_runs("finished"), timeout_s=60)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "the same command continues" in err
    wait_for(lambda: not list_runs("running") and not list_runs("queued"))
