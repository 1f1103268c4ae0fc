"""`models eval` as users run it, against a daemon process whose engines are simulated."""

import json
import signal
import subprocess
from pathlib import Path

from tests.support.commands import cli, list_runs, start_cli, wait_for


def write(path: Path, count: int) -> Path:
    """Problems whose right answer is what the greedy chain says."""
    lines = []
    for i in range(count):
        text = f"How many are left of {i}?"
        greedy = cli(
            "solve", text, "-q", "--strategy", "best_of_n", "-n", "1", "--temperature", "0"
        )
        assert greedy.returncode == 0, greedy.stderr
        lines.append({"id": f"p-{i}", "problem": text, "answer": greedy.stdout.strip(), "steps": i})
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_measure_stop_and_go_on(daemon: subprocess.Popen[bytes], tmp_path: Path) -> None:
    problems = write(tmp_path / "left.jsonl", 3)
    out = tmp_path / "out"
    command = ("models", "eval", "--problems", str(problems), "--output", str(out))
    before = {run["id"] for run in list_runs("finished")}
    done = cli(*command, "--n", "2,4", "--limit", "2", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["problems"] == 2
    assert report["accuracy"]["greedy"]["value"] == 1.0
    assert 0 < report["accuracy"]["sample"]["value"] <= 1
    assert report["verifier"]["expected calibration error"]["value"] is not None
    assert (out / "reliability.svg").exists()
    assert {run["id"] for run in list_runs("finished")} == before

    whole = json.loads(cli(*command, "--n", "2,4", "--json").stdout)
    assert whole["problems"] == 3
    elsewhere = ("--output", str(tmp_path / "again"))
    again = json.loads(cli(*command, "--n", "2,4", "--json", *elsewhere).stdout)
    assert again == whole  # resumed or in one go


def test_ctrl_c_cancels_its_runs(daemon: subprocess.Popen[bytes], tmp_path: Path) -> None:
    problems = write(tmp_path / "left.jsonl", 2)
    process = start_cli("models", "eval", "--problems", str(problems), "--n", "512")
    wait_for(lambda: list_runs("running"))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "problems are stored in" in err
    wait_for(lambda: not list_runs("running") and not list_runs("queued"))
