"""`flashedge bench load` against a daemon that a script plays."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.lab.load_rig import LoadDaemon
from tests.support.cli_rig import Cli, with_daemon


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """Problems, and times at which six programs arrive."""
    problems, times = tmp_path / "problems.jsonl", tmp_path / "times.txt"
    problems.write_text('{"id": "a", "problem": "right 4", "answer": "4"}\n')
    times.write_text("".join(f"{i / 50}\n" for i in range(6)))
    return str(problems), str(times)


def ask(files: tuple[str, str], folder: Path, *more: str) -> tuple[str, ...]:
    problems, times = files
    given = ("--problems", problems, "--arrivals", times, "--output", str(folder))
    return ("bench", "load", *given, *more)


def test_a_load_and_its_report(
    cli: Cli, files: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = with_daemon(monkeypatch, LoadDaemon())
    difficulty = tmp_path / "trials.jsonl"
    difficulty.write_text('{"id": "a", "correct": true}\n')
    deadlines = ("--slo", "chat=2,search=30", "--difficulty", str(difficulty))
    folder = tmp_path / "out"
    done = cli.ends(0, "", *ask(files, folder, *deadlines))
    assert "6 of 6 programs finished" in done.out
    assert "Deadlines: chat 2 s, search 30 s, times 1" in done.out
    assert "known for 1 of 1 problem" in done.out
    for row in ("all", "chat", "search"):
        assert any(line.startswith(row) for line in done.out.splitlines()), row
    again = cli.ends(0, "", *ask(files, folder, *deadlines, "--json"))
    report = json.loads(again.out)
    assert report["finished"] == report["programs"] == 6
    assert report["attainment"] == report["accuracy"] == 1.0
    assert report["late_s"] < 5
    assert set(report["by_kind"]) == {"chat", "search"}
    assert "another --output" in again.err
    assert len([r for r in daemon.requests if r.method == "POST"]) == 6  # nothing ran twice
    assert len((folder / "programs.jsonl").read_text().splitlines()) == 7  # the settings first
    assert json.loads((folder / "report.json").read_text()) == report


def test_a_full_queue_and_unknown_difficulties_are_shown(
    cli: Cli, files: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_daemon(monkeypatch, LoadDaemon())
    Path(files[0]).write_text('{"problem": "full"}\n{"problem": "right 4"}\n')
    done = cli.ends(0, "", *ask(files, tmp_path / "out", "--slo", "chat=2"))
    assert "known for 0 of 2 problems; the others count 2" in done.out
    assert "were refused because the queue was full" in done.out


def test_a_lost_daemon_keeps_what_finished_and_the_same_command_resumes(
    cli: Cli, files: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Frail(LoadDaemon):
        """Goes away at the fourth program."""

        def answer(self, request: Any) -> Any:
            posts = sum(r.method == "POST" for r in self.requests)
            if request.method == "POST" and posts >= 3:
                raise httpx.ConnectError("gone")
            return super().answer(request)

    folder = tmp_path / "out"
    with_daemon(monkeypatch, Frail())
    done = cli.ends(4, "interrupted after", *ask(files, folder))
    assert "the same command resumes" in done.err
    assert "programs finished" in done.out
    kept = len((folder / "programs.jsonl").read_text().splitlines()) - 1
    assert 0 < kept <= 3
    daemon = with_daemon(monkeypatch, LoadDaemon())
    done = cli.ends(0, "", *ask(files, folder, "--json"))
    assert sum(r.method == "POST" for r in daemon.requests) == 6 - kept
    report = json.loads(done.out)
    assert (report["finished"], report["parts"]) == (6, 2)
    cli.ends(2, "was made with seed 0, not seed 1", *ask(files, folder, "--seed", "1"))


def test_what_is_refused(cli: Cli, files: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    with_daemon(monkeypatch, LoadDaemon())
    problems, times = files
    known = ("--problems", problems)
    for flags, said in (
        ((*known,), "there is no rate of arrivals"),
        (("--rate", "2"), "there are no problems to ask"),
        ((*known, "--rate", "2", "--mix", "chat=2"), "sum to 2, not to 1"),
        ((*known, "--rate", "2", "--slo", "talk=2"), "--slo 'talk=2'"),
        ((*known, "--rate", "2", "--arrivals", times), "contradict each other"),
        ((*known, "--rate", "1e-9"), "no program arrives"),
        ((*known, "--rate", "2", "--policy", "tie"), "--policy needs --simulated"),
        ((*known, "--rate", "2", "--simulated"), "--problems has no meaning with --simulated"),
        (("--simulated", "--rate", "2", "--policy", "luck"), "must be one of fcfs, gang"),
        (("--simulated", "--rate", "2", "--gpu", "tpu"), "no card 'tpu'"),
        ((*known, "--arrivals", "often"), "can't read often"),
        ((*known, "--rate", "2", "--strategy", "beem"), "beem"),
        ((*known, "--rate", "2", "--difficulty", times), "line 1: not an object"),
    ):
        assert cli.ends(2, said, "bench", "load", *flags).out == ""


def test_a_simulated_load(cli: Cli) -> None:
    asked = ("--simulated", "--rate", "4", "--minutes", "0.05", "--n", "4", "--limit", "4")
    done = cli.ends(0, "", "bench", "load", *asked, "--policy", "fcfs")
    assert done.out.startswith("SIMULATED: math-1.5b+skywork-1.5b on rtx4090, policy fcfs")
    assert "coefficient of variation" in done.out
    report = json.loads(cli("bench", "load", *asked, "--json", "--slo", "chat=9").out)
    assert (report["load"]["simulated"], report["load"]["policy"]) == (True, "shortest")
    assert report["finished"] == report["programs"] > 3
    assert report["load"]["dispersion"]["chat"]["within_cv"] > 0.5
    assert report["attainment"] is not None
