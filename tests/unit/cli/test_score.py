"""`score` of one problem. tests/unit/batch has its files."""

import io
import json
from pathlib import Path

import pytest

from tests.support.cli_rig import Cli, Done, Patch, with_daemon
from tests.support.fake_daemon import ScoreDaemon

PROBLEM, RIGHT, WRONG = "What is 12 + 7?", "12 + 7.\n\nSo 19.", "It is\t18."


@pytest.fixture
def daemon(monkeypatch: Patch) -> ScoreDaemon:
    return with_daemon(monkeypatch, ScoreDaemon())  # type: ignore[return-value]


def read_rows(done: Done) -> list[list[str]]:
    return [line.rstrip().split(maxsplit=3) for line in done.out.splitlines()]


def test_a_row_for_each_step_and_for_the_whole(cli: Cli, daemon: ScoreDaemon) -> None:
    done = cli.ends(0, "", "score", PROBLEM, RIGHT, WRONG)
    assert read_rows(done) == [
        ["solution", "step", "score", "text"],
        ["1", "1", "0.0700", "12 + 7."],
        ["1", "2", "0.0600", "So 19."],
        ["1", "last", "0.0600"],
        ["2", "1", "0.0900", "It is 18."],
        ["2", "last", "0.0900"],
    ]
    assert daemon.bodies("/v1/score") == [{"problem": PROBLEM, "solution": [RIGHT, WRONG]}]


def test_a_solution_on_standard_input_and_the_daemons_answer_as_json(
    cli: Cli, daemon: ScoreDaemon, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(RIGHT))
    done = cli("score", "--json", PROBLEM)
    assert json.loads(done.out)["data"][0]["step_scores"] == [0.07, 0.06]
    assert cli("score", PROBLEM, "So 19.").code == 0
    asked = [body["solution"] for body in daemon.bodies("/v1/score")]
    assert asked == [RIGHT, "So 19."], "a single solution is no list"
    for command in (("score", PROBLEM), ("chat", "--no-save")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n"), "utf-8"))
        cli.ends(2, "can't read standard input: not UTF-8 text", *command)


def test_all_options_reach_the_daemon(cli: Cli, daemon: ScoreDaemon, tmp_path: Path) -> None:
    (tmp_path / "problem.txt").write_text(PROBLEM + "\n")
    options = ("--aggregate", "min", "--deterministic", "--priority", "2", "--pair", "bundled")
    file = ("--file", str(tmp_path / "problem.txt"), "--program", "filter")
    assert cli("score", *file, RIGHT, WRONG, *options).code == 0
    settings = {"model": "bundled", "aggregate": "min", "deterministic": True, "priority": 2}
    (asked,) = daemon.bodies("/v1/score")
    assert asked == {"problem": PROBLEM, "solution": [RIGHT, WRONG], **settings}
    assert daemon.requests[-1].headers["x-flashedge-program"] == "filter"
