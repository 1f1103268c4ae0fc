"""A batch process killed again and again, against a daemon process whose engines are simulated."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from flashedge.config import Config
from flashedge.daemon import control
from tests.support.commands import CLI, SIMULATED, cli, list_runs, wait_for

NUM = 16


@pytest.fixture
def command(tmp_path: Path) -> tuple[str, ...]:
    problems = [{"id": f"p{i}", "problem": f"How many are {i}?", "answer": "7"} for i in range(NUM)]
    source = tmp_path / "problems.jsonl"
    source.write_text("".join(json.dumps(p) + "\n" for p in problems))
    target = str(tmp_path / "results.jsonl")
    return ("solve", "--input", str(source), "--output", target, "-n", "12", "--jobs", "6")


def records(command: tuple[str, ...]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(command[4]).read_text().splitlines()]


def lines(command: tuple[str, ...]) -> int:
    target = Path(command[4])
    return target.read_bytes().count(b"\n") if target.exists() else 0


def begun(command: tuple[str, ...]) -> subprocess.Popen[bytes]:
    null = subprocess.DEVNULL
    return subprocess.Popen([*CLI, *command], stdout=null, stderr=null)


def kill_in_the_middle(command: tuple[str, ...], times: int) -> int:
    """SIGKILL at random moments, and a torn last line; how often it was still at work."""
    chance, killed = random.Random(5), 0
    for _ in range(times):
        process, before = begun(command), lines(command)
        wait_for(lambda p=process, b=before: lines(command) > b or p.poll() is not None)
        time.sleep(chance.random() * 0.2)
        killed += process.poll() is None
        process.kill()
        process.wait(60)
        with Path(command[4]).open("ab") as out:
            out.write(b'{"id": "p3", "ans')
    return killed


def test_no_problem_is_lost_or_solved_twice(
    daemon: subprocess.Popen[bytes], command: tuple[str, ...]
) -> None:
    assert kill_in_the_middle(command, 3) >= 2
    done = cli(*command)
    assert done.returncode == 0, done.stderr
    assert f"{NUM} of {NUM} solved" in done.stdout
    found = records(command)
    assert sorted(r["id"] for r in found) == sorted(f"p{i}" for i in range(NUM))
    kept = list_runs()
    assert len(kept) == NUM
    assert {r["id"]: (r["answer"], r["tree_tokens"], r["total_s"]) for r in kept} == {
        r["run"]: (r["answer"], r["tokens"], r["seconds"]) for r in found
    }


def test_ctrl_c_then_on(daemon: subprocess.Popen[bytes], command: tuple[str, ...]) -> None:
    process = begun(command)
    wait_for(lambda: lines(command) > 0)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    kept = records(command)
    assert 0 < len(kept) < NUM
    assert list_runs("running") == list_runs("queued") == []
    assert cli(*command).returncode == 0
    assert records(command)[: len(kept)] == kept
    assert len({r["id"] for r in records(command)}) == len(records(command)) == NUM
    assert sum(r["status"] == "finished" for r in list_runs()) == NUM


def test_a_killed_daemon(
    config: Config, daemon: subprocess.Popen[bytes], command: tuple[str, ...]
) -> None:
    process = begun(command)
    wait_for(lambda: lines(command) > 2)
    daemon.kill()
    daemon.wait(60)
    assert process.wait(60) == 4
    kept = records(command)
    second = control.start(config, {"port": 0}, SIMULATED)
    control.wait_ready(config, second, timeout_s=60)
    assert cli(*command).returncode == 0
    found = records(command)
    assert found[: len(kept)] == kept
    assert len({r["id"] for r in found}) == len(found) == NUM


@pytest.mark.long
def test_a_shared_budget_over_kills(
    daemon: subprocess.Popen[bytes], command: tuple[str, ...]
) -> None:
    """Each problem's last run holds its whole tree; what a continued run holds is its beginning.
    It takes half a minute."""
    total = 60_000
    command = (*command, "--strategy", "beam", "--budget-tokens-total", str(total))
    kill_in_the_middle(command, 3)
    done = cli(*command, "--json")
    assert done.returncode == 0, done.stderr
    found = records(command)
    assert len({r["id"] for r in found}) == len(found) == NUM
    assert all(r["cut_by"] in (None, "budget") for r in found)
    assert json.loads(done.stdout)["tokens"] == sum(r["tokens"] for r in found)
    assert any(run["id"].endswith("-1") for run in list_runs()), "some were given more"
    largest = {r["id"]: r["tree_tokens"] for r in list_runs()}
    by_problem: dict[str, int] = {}
    for run, tokens in largest.items():
        index = run.split("-")[2]
        by_problem[index] = max(by_problem.get(index, 0), tokens)
    assert sum(by_problem.values()) == sum(r["tokens"] for r in found)
