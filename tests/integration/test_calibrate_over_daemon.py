"""`calibrate` as users run it, against a daemon process whose engines are simulated."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from test_cli_over_daemon import cli, config, daemon, runs, started, wait_for

from flashedge.config import Config
from flashedge.runtime.request.calibrations import calibrations_file, load_calibrations

__all__ = ["config", "daemon"]


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    path = tmp_path / "left.jsonl"
    lines = [{"id": i, "problem": f"What is left of {i}?", "answer": i % 10} for i in range(12)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def done(*arguments: str) -> dict[str, Any]:
    found = cli("calibrate", *arguments, "--json")
    assert found.returncode == 0, found.stderr
    return dict(json.loads(found.stdout))


def test_found_kept_used_and_left_aside(
    daemon: subprocess.Popen[bytes], config: Config, problems: Path, tmp_path: Path
) -> None:
    picture = tmp_path / "frontier.svg"
    command = (str(problems), "--strategy", "self_consistency-6", "--accuracy-floor", "0.5")
    dry = done(*command, "--dry-run", "--limit", "4")
    assert (dry["saved"], dry["provenance"]["num_problems"]) == (None, 4)
    assert not calibrations_file(config).exists()
    assert len(runs("finished")) == 4
    made = done(*command, "--plot", str(picture))
    assert len(runs("finished")) == 12  # the four were not run again
    assert made["saved"] == str(calibrations_file(config))
    told = made["provenance"]
    assert told["problems"]["name"] == problems.name
    assert (told["n"], told["num_runs"], told["reference"]) == (6, 12, "known answers")
    assert told["chosen"]["tokens_after"] < told["chosen"]["tokens_before"]
    assert told["validated"]["accuracy_before"] == told["chosen"]["accuracy_before"]
    assert "<svg" in picture.read_text()
    assert (tmp_path / "frontier-skyline.svg").exists()
    (kept,) = load_calibrations(config)
    assert {**json.loads(json.dumps(kept.to_json())), "saved": made["saved"]} == made

    solve = ("solve", "What is left of 3?", "--json", "--strategy", "self_consistency-6")
    run = json.loads(cli(*solve, "--early-exit").stdout)
    assert run["early_exit_source"] == "calibration"
    assert made["rule"]["detect"] <= len(run["completions"]) <= 6
    run = json.loads(cli(*solve, "--early-exit", "--detect", "2").stdout)
    assert run["early_exit_source"] == "request"
    stored = json.loads(calibrations_file(config).read_text())
    stored["calibrations"][0]["fingerprint"] = "0" * 16
    calibrations_file(config).write_text(json.dumps(stored))
    run = json.loads(cli(*solve, "--early-exit").stdout)
    assert run["early_exit_source"] == "defaults"
    assert "the pair bundled has changed since" in run["early_exit_note"]
    plain = ("solve", "What is left of 3?", "--strategy", "self_consistency-6", "--early-exit")
    assert "has changed since" in " ".join(cli(*plain).stderr.split())
    told = cli("doctor").stdout
    assert "self_consistency on bundled" in told
    assert "the pair changed since" in told


def test_rebase_is_calibrated_in_the_trees_that_it_exits_between(
    daemon: subprocess.Popen[bytes], problems: Path
) -> None:
    made = done(str(problems), "--strategy", "rebase-20", "--limit", "6")
    assert made["settings"]["options"] == {"width": 16}
    plain = ("solve", "What is left of 3?", "--json", "--strategy", "rebase-20", "--early-exit")
    run = json.loads(cli(*plain).stdout)
    assert run["early_exit_source"] == "calibration"


@pytest.mark.parametrize(
    "strategy", ["best_of_n-4", "mcts-3", "rebase-4", "beam-4", "dvts-4", "probed_cot"]
)
def test_every_strategy(daemon: subprocess.Popen[bytes], problems: Path, strategy: str) -> None:
    made = cli("calibrate", str(problems), "--strategy", strategy, "--limit", "6")
    assert made.returncode == 0, made.stderr
    assert "rule: " in made.stdout
    assert "cross-validated" in made.stdout
    assert "uncalibrated" in made.stdout
    assert "wrote " in made.stdout


def test_from_runs_that_are_kept(daemon: subprocess.Popen[bytes], problems: Path) -> None:
    none = cli("calibrate", "--from-runs", "--strategy", "beam-4")
    assert none.returncode == 2
    assert "no run of beam-4 on bundled at full compute" in none.stderr
    for i in range(4):
        for extra in ([], ["--early-exit"]):
            text = f"What is left of {i}?"
            solved = cli("solve", text, "-q", "--strategy", "beam-4", "--seed", str(i), *extra)
            assert solved.returncode == 0, solved.stderr
    made = done("--from-runs", "--strategy", "beam-4", "--policy", "every_step")["provenance"]
    assert (made["origin"], made["reference"]) == ("runs", "answers at full compute")
    assert (made["num_runs"], made["chosen"]["accuracy_before"]) == (4, 1.0)
    known = done(str(problems), "--from-runs", "--strategy", "beam-4", "--limit", "3")
    assert known["provenance"]["reference"] == "known answers"
    assert known["provenance"]["num_runs"] == 3


def test_ctrl_c_keeps_what_is_finished(daemon: subprocess.Popen[bytes], tmp_path: Path) -> None:
    problems = tmp_path / "many.jsonl"
    problems.write_text("\n".join(f'{{"problem": "p {i}?", "answer": 1}}' for i in range(400)))
    process = started("calibrate", str(problems), "--strategy", "best_of_n-64")
    wait_for(lambda: runs("finished"))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert "the same command goes on" in err
    wait_for(lambda: not runs("running") and not runs("queued"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name a file of problems"),
        (("gone.jsonl",), "can't read gone.jsonl"),
        (("--from-runs", "--strategy", "bem"), "no strategy 'bem'"),
        (("--from-runs", "--strategy", "beam-4", "-n", "5"), "contradict"),
        (("--from-runs", "-n", "1"), "n is 1"),
        (("--from-runs", "--strategy", "probed_cot", "-n", "4"), "one chain"),
        (("--from-runs", "--policy", "luck"), "policy"),
        (("--from-runs", "--accuracy-floor", "2"), "accuracy_floor"),
        (("--from-runs", "--plot", "x.pdf"), ".svg or .png"),
    ],
)
def test_wrong_calls(config: Config, arguments: tuple[str, ...], said: str) -> None:
    found = cli("calibrate", *arguments)
    assert (found.returncode, found.stdout) == (2, "")
    assert said in found.stderr
