"""`score`: the request to the daemon, the output, files of solutions, and the exit codes."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from flashedge.client import follow
from flashedge.client.follow import RetryPolicy
from tests.support.cli_rig import Cli, Done, Patch, cli_for, with_daemon
from tests.support.fake_daemon import FakeDaemon, refuse

PROBLEM, RIGHT, WRONG = "What is 12 + 7?", "12 + 7.\n\nSo 19.", "It is\t18."


class ScoreDaemon(FakeDaemon):
    """A step's score is its length in hundredths. A text with "long" is too long; the first `full`
    requests are refused, and all where `is_down`."""

    full = 0
    is_down = False

    def answer_other(self, key: str) -> Any:
        if key != "POST /v1/score":
            return super().answer_other(key)
        if self.is_down:
            raise httpx.ConnectError("gone")
        if self.full > 0:
            self.full -= 1
            return refuse(503, "queue_full", **{"Retry-After": "0"})
        body = json.loads(self.requests[-1].content)
        if body.get("aggregate") == "max":
            error = {"message": "no max", "param": "aggregate", "code": "invalid_request"}
            return httpx.Response(400, json={"error": error})
        given = body.get("solution", body.get("steps"))
        texts = [given] if isinstance(given, str) else given
        if any("long" in text for text in texts):
            code = "context_length_exceeded"
            error = {"message": "600 tokens", "param": "solution", "code": code}
            return httpx.Response(400, json={"error": error})
        data = []
        for index, text in enumerate(texts):
            steps = text.split("\n\n")
            scores = [len(step) / 100 for step in steps]
            one = {"score": scores[-1], "steps": steps, "step_scores": scores, "tokens": 9}
            data.append({"index": index, "object": "score", **one})
        aggregate = body.get("aggregate", "last")
        return httpx.Response(200, json={"aggregate": aggregate, "data": data})


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: Patch, capfd: pytest.CaptureFixture[str]) -> Cli:
    monkeypatch.setattr(follow, "UNATTENDED", RetryPolicy(first_s=0.0, max_retries=2))
    monkeypatch.setattr(follow, "MIN_QUEUE_PAUSE_S", 0.01)
    return cli_for(tmp_path, monkeypatch, capfd)


@pytest.fixture
def daemon(monkeypatch: Patch) -> ScoreDaemon:
    return with_daemon(monkeypatch, ScoreDaemon())  # type: ignore[return-value]


def read_rows(done: Done) -> list[list[str]]:
    return [line.rstrip().split(maxsplit=3) for line in done.out.splitlines()]


# ---------------------------------------------------------------- one problem


def test_a_row_for_each_step_and_for_the_whole(cli: Cli, daemon: ScoreDaemon) -> None:
    done = cli("score", PROBLEM, RIGHT, WRONG)
    assert done.code == 0
    assert read_rows(done) == [
        ["solution", "step", "score", "text"],
        ["1", "1", "0.0700", "12 + 7."],
        ["1", "2", "0.0600", "So 19."],
        ["1", "last", "0.0600"],
        ["2", "1", "0.0900", "It is 18."],
        ["2", "last", "0.0900"],
    ]
    assert daemon.bodies("/v1/score") == [{"problem": PROBLEM, "solution": [RIGHT, WRONG]}]


def test_json_is_the_daemons_answer(cli: Cli, daemon: ScoreDaemon) -> None:
    done = cli("score", "--json", PROBLEM, "So 19.")
    assert json.loads(done.out)["data"][0]["step_scores"] == [0.06]
    assert daemon.bodies("/v1/score") == [{"problem": PROBLEM, "solution": "So 19."}]


def test_all_options_reach_the_daemon(cli: Cli, daemon: ScoreDaemon, tmp_path: Path) -> None:
    (tmp_path / "problem.txt").write_text(PROBLEM + "\n")
    options = ("--aggregate", "min", "--deterministic", "--priority", "2", "--pair", "bundled")
    file = ("--file", str(tmp_path / "problem.txt"), "--program", "filter")
    assert cli("score", *file, RIGHT, WRONG, *options).code == 0
    settings = {"model": "bundled", "aggregate": "min", "deterministic": True, "priority": 2}
    (asked,) = daemon.bodies("/v1/score")
    assert asked == {"problem": PROBLEM, "solution": [RIGHT, WRONG], **settings}
    assert daemon.requests[-1].headers["x-flashedge-program"] == "filter"


def test_a_solution_on_standard_input(cli: Cli, daemon: ScoreDaemon, monkeypatch: Patch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(RIGHT))
    assert cli("score", PROBLEM).code == 0
    assert daemon.bodies("/v1/score") == [{"problem": PROBLEM, "solution": RIGHT}]


def test_a_solution_that_is_too_long(cli: Cli, daemon: ScoreDaemon) -> None:
    cli.ends(2, "600 tokens", "score", PROBLEM, "a long text")


# ---------------------------------------------------------------- files


@dataclass
class Folder:
    """in.jsonl, out.jsonl and the command over them."""

    source: Path
    target: Path
    cli: Cli

    def give(self, *lines: object) -> None:
        self.source.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def ends(self, code: int, said: str, *options: str) -> Done:
        files = ("--input", str(self.source), "--output", str(self.target))
        return self.cli.ends(code, said, "score", *files, *options)

    def records(self) -> dict[Any, Any]:
        lines = map(json.loads, self.target.read_text().splitlines())
        return {line["id"]: line for line in lines}


@pytest.fixture
def folder(tmp_path: Path, cli: Cli, daemon: ScoreDaemon) -> Folder:
    made = Folder(tmp_path / "in.jsonl", tmp_path / "out.jsonl", cli)
    made.give(
        {"problem": PROBLEM, "solution": [RIGHT, WRONG], "label": 1},
        {"id": "b", "problem": PROBLEM, "steps": ["So 19."]},
    )
    return made


def test_each_line_comes_back_with_its_scores(folder: Folder, daemon: ScoreDaemon) -> None:
    daemon.full = 2
    done = folder.ends(0, "", "--aggregate", "min", "--jobs", "2")
    assert done.out == f"2 of 2 scored: {folder.target}\n"
    records = folder.records()
    first = records[1]
    assert (first["problem"], first["solution"], first["label"]) == (PROBLEM, [RIGHT, WRONG], 1)
    assert first["scores"] == [
        {"score": 0.06, "steps": ["12 + 7.", "So 19."], "step_scores": [0.07, 0.06], "tokens": 9},
        {"score": 0.09, "steps": [WRONG], "step_scores": [0.09], "tokens": 9},
    ]
    assert records["b"]["scores"][0]["step_scores"] == [0.06]
    asked = [body for body in daemon.bodies("/v1/score") if "steps" in body][-1]
    settings = {"model": "bundled", "aggregate": "min", "priority": 1}
    assert asked == {"problem": PROBLEM, "steps": ["So 19."], **settings}


def test_the_same_command_resumes(folder: Folder, daemon: ScoreDaemon) -> None:
    daemon.is_down = True
    folder.ends(4, "0 of 2 done; the same command resumes")
    daemon.is_down = False
    folder.ends(0, "")
    asked, written = len(daemon.bodies("/v1/score")), folder.target.read_bytes()
    folder.ends(0, "")
    assert len(daemon.bodies("/v1/score")) == asked
    assert folder.target.read_bytes() == written
    folder.ends(2, "aggregate", "--aggregate", "min")


def test_a_line_that_is_refused_has_an_error(folder: Folder, daemon: ScoreDaemon) -> None:
    folder.give(
        {"id": 1, "problem": PROBLEM, "solution": "a long text"},
        {"id": 2, "problem": PROBLEM, "solution": RIGHT},
    )
    told = {"output": str(folder.target), "lines": 2, "failed": 1}
    assert json.loads(folder.ends(1, "", "--json").out) == told
    error = {"code": "context_length_exceeded", "message": "600 tokens"}
    assert folder.records()[1]["error"] == error
    asked = len(daemon.bodies("/v1/score"))
    folder.ends(1, "", "--retry-failed")
    assert len(daemon.bodies("/v1/score")) == asked + 1
    folder.target.unlink()
    folder.ends(2, "no max", "--aggregate", "max")  # wrong settings end the command


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"solution": "x"}, "problem is missing"),
        ({"problem": "p"}, "either solution or steps"),
        ({"problem": "p", "solution": "x", "steps": ["x"]}, "either solution or steps"),
        ({"id": 1.5, "problem": "p", "solution": "x"}, "id is neither"),
        ({"id": "first", "problem": "p", "solution": "x"}, "another line has the id 'first'"),
        (["p", "x"], "not an object"),
    ],
)
def test_a_line_that_is_wrong_is_named(folder: Folder, line: object, message: str) -> None:
    folder.give({"id": "first", "problem": "p", "solution": "x"}, line)
    assert "in.jsonl, line 2" in folder.ends(2, message).err.replace("\n", "")
