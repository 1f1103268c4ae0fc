"""`bench load` as users run it, against a daemon process whose engines are simulated."""

import json
import signal
import subprocess
from pathlib import Path

from tests.support.commands import cli, list_runs, start_cli, wait_for


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_mixed_load(daemon: subprocess.Popen[bytes], tmp_path: Path) -> None:
    problems = write(
        tmp_path / "problems.jsonl",
        "".join(json.dumps({"problem": f"How many are left of {i}?"}) + "\n" for i in range(4)),
    )
    times = write(tmp_path / "times.txt", "".join(f"{i / 20}\n" for i in range(40)))
    folder = tmp_path / "out"
    command = ("bench", "load", "--problems", problems, "--arrivals", times, "--n", "4")
    done = cli(*command, "--output", str(folder), "--slo", "chat=5,search=60", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["programs"] == 40
    assert report["failed"] == 0
    assert report["finished"] + report["refused"] == 40
    assert report["finished"] >= 20
    searches = report["by_kind"]["search"]
    assert 0 < searches["ttft_s"]["p50"] <= searches["latency_s"]["p50"]
    assert searches["per_token_s"]["mean"] > 0
    runs = list_runs("finished")
    assert len(runs) == searches["finished"]
    assert report["by_kind"]["chat"]["finished"] > 5
    assert not list_runs("running")


def test_ctrl_c_cancels_the_open_runs(daemon: subprocess.Popen[bytes], tmp_path: Path) -> None:
    problems = write(tmp_path / "problems.jsonl", '{"problem": "How many are left of 9?"}\n')
    # With seed 0 the default mix draws search, search, chat and, at 50 s, chat: only the first chat
    # has ended when Ctrl-C comes.
    times = write(tmp_path / "times.txt", "0\n0\n0\n50\n")
    records = tmp_path / "out" / "programs.jsonl"
    process = start_cli(
        *("bench", "load", "--problems", problems, "--arrivals", times, "--n", "512"),
        *("--output", str(records.parent)),
    )
    wait_for(lambda: list_runs("running") and records.read_text().count("\n") > 1)  # the chat ended
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted after" in err
    assert "the same command resumes" in err
    assert "1 of 1 program finished" in out
    wait_for(lambda: not list_runs("running") and not list_runs("queued"))
