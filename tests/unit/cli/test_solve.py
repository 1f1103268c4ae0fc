"""`solve`: the requests to the daemon, the output and the exit codes."""

import dataclasses
import io
import json
import re
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest

from flashedge import events
from flashedge.cli.solve import result
from flashedge.cli.solve.strategy_flags import REQUEST_FIELDS
from flashedge.client.sync_client import Client
from flashedge.runtime.request.validation import Request
from tests.support.cli_rig import Cli, Patch, Terminal, with_daemon
from tests.support.fake_daemon import FakeDaemon
from tests.support.story import RESULT, STORY


def test_the_answer_alone_on_stdout_the_rest_on_stderr(cli: Cli, daemon: FakeDaemon) -> None:
    done = cli("solve", "What is 12 + 7?")
    assert (done.code, done.out) == (0, "19\n")
    assert ("✓ 0.95" in done.err, "\\boxed{19}" in done.err) == (False, True)
    assert "votes (paths, weight): 19 (1, 0.90), 18 (1, 0.20)" in done.err
    (asked,) = (r for r in daemon.requests if r.url.path == "/v1/solve")
    assert json.loads(asked.content) == {"problem": "What is 12 + 7?", "stream": True}
    assert asked.headers["x-flashedge-client"] == "cli"
    assert "x-flashedge-program" not in asked.headers
    assert "✓ 0.95" in cli("solve", "--tree", "What is 12 + 7?").err
    done = cli("solve", "-q", "p")
    assert (done.out, done.err) == ("19\n", "")
    done = cli("solve", "--json", "p")
    assert (json.loads(done.out), done.err) == (RESULT, "")


def test_votes_without_a_verifier_and_an_answer_on_a_terminal(
    capfd: pytest.CaptureFixture[str], monkeypatch: Patch
) -> None:
    votes = [{"answer": "19", "count": 3, "weight": 0.0}, {"answer": "8", "count": 1, "weight": 0}]
    result.print_result({**RESULT, "votes": votes}, quiet=False)
    assert "votes (paths): 19 (3), 8 (1)" in capfd.readouterr().err
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    result.print_result({**RESULT, "answer": "[b]19\x1b[2J"}, quiet=True)
    result.print_result({**RESULT, "answer": "one\ntwo"}, quiet=True)
    plain = re.sub(r"\x1b\[\d*m", "", screen.getvalue())  # dim and bold
    assert plain == "\nanswer  [b]19␛[2J\none\ntwo\n"


def test_all_options_reach_the_daemon(cli: Cli, daemon: FakeDaemon) -> None:
    options = (
        "--strategy beam-16 --seed 5 --temperature 0.5 --max-tokens 400 --budget-tokens 5000"
        " --deadline 7.5 --pair bundled --priority 1"
    )
    fields = (
        " --set branching=2 --set aggregate=min --set selection=best --set top_p=0.9 --set top_k=40"
        " --set max_step_tokens=64 --set max_steps=9 --set baseline=true"
        " --set early_exit.thresholds.entropy=0.9 --set early_exit.detect=2"
    )
    assert cli("solve", "p", "--program", "task 7", *(options + fields).split()).code == 0
    (asked,) = (r for r in daemon.requests if r.url.path == "/v1/solve")
    assert asked.headers["x-flashedge-client"] == "cli"
    assert asked.headers["x-flashedge-program"] == "task 7"
    by_flag = {"pair": "bundled", "strategy": "beam", "n": 16, "seed": 5, "temperature": 0.5}
    by_flag |= {"max_tokens": 400, "token_budget": 5000, "deadline_s": 7.5, "priority": 1}
    by_set = {"branching": 2, "aggregate": "min", "selection": "best", "top_p": 0.9, "top_k": 40}
    by_set |= {"max_step_tokens": 64, "max_steps": 9, "baseline": True}
    exits = {"early_exit": {"thresholds": {"entropy": 0.9}, "detect": 2}}
    body = {"problem": "p", "stream": True, **by_flag, **by_set, **exits}
    assert daemon.bodies("/v1/solve") == [body]


def test_a_run_that_waits_says_so_once(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.queued = [{"position": 2, "starts_in_s": 40.0}, {"position": 1, "starts_in_s": 12.0}]
    done = cli("solve", "p")
    assert done.out == "19\n"
    first, *rest = done.err.splitlines()
    assert first == "run run-1 waits: 2 before it, starts in about 40 s"
    assert not [line for line in rest if "waits" in line]
    assert cli("solve", "p", "-q").err == ""
    daemon.queued = [{"position": None}]
    assert "waits" not in cli("solve", "p").err, "it starts at once"


def test_a_problem_in_a_file(cli: Cli, daemon: FakeDaemon, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("from a file\n")
    assert cli("solve", "--file", str(tmp_path / "p.txt")).code == 0
    assert [body["problem"] for body in daemon.bodies("/v1/solve")] == ["from a file"]
    for file in ("/no/such/file", "/"):
        done = cli.ends(5, f"can't read {file}: ", "solve", "--file", file, "--json")
        told = json.loads(done.out)["error"]
        assert (told["code"], told["hint"]) == ("store_error", None)
        assert told["message"].startswith(f"can't read {file}")


def test_a_problem_on_stdin(cli: Cli, daemon: FakeDaemon, monkeypatch: Patch) -> None:
    for typed, options in (("from stdin\n", ["-"]), ("from a pipe\n", [])):
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        assert cli("solve", *options).code == 0
    sent = [body["problem"] for body in daemon.bodies("/v1/solve")]
    assert sent == ["from stdin", "from a pipe"]
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert cli.ends(2, "the problem is empty", "solve").out == ""


def test_an_error_is_json_only_where_the_option_is_given(cli: Cli, daemon: FakeDaemon) -> None:
    """Behind `--` it is the problem's text."""
    asked = cli.ends(2, "beem", "solve", "--strategy", "beem-4", "--json", "p")
    told = json.loads(asked.out)["error"]
    assert (told["param"], told["hint"]) == ("strategy", "did you mean 'beam'?")
    assert told["message"] in asked.err
    assert cli("solve", "--strategy", "beem-4", "--", "--json").out == ""
    assert daemon.bodies("/v1/solve") == []


EXITS = {"invalid_request": (400, 2), "not_found": (404, 2), "queue_full": (503, 6)}
EXITS |= {"engine_dead": (503, 3), "daemon_error": (503, 4), "store_error": (507, 5)}


@pytest.mark.parametrize("code", EXITS)
def test_the_daemons_errors(cli: Cli, daemon: FakeDaemon, code: str) -> None:
    status, exit_code = EXITS[code]
    told = {"error": {"message": "as told", "code": code, "hint": "do this"}}
    daemon.errors["POST /v1/solve"] = httpx.Response(status, json=told)
    done = cli("solve", "p")
    assert (done.code, done.out) == (exit_code, "")
    assert done.err.endswith("error: as told\n  do this\n")


def test_a_run_that_fails_or_that_somebody_cancels(cli: Cli, monkeypatch: Patch) -> None:
    failed = events.RunFailed(error="died", code="engine_dead", hint="again")
    cancelled = events.RunCancelled(reason="by hand")
    for end, code, told in (
        (failed, 3, "died\n  again"),
        (cancelled, 2, "run run-1 was cancelled: by hand"),
    ):
        with_daemon(monkeypatch, FakeDaemon([*STORY[:4], end]))
        assert cli.ends(code, f"error: {told}", "solve", "p").out == ""


@pytest.mark.parametrize(
    ("seen", "told"), [(2, "cancelled run run-1"), (0, "the daemon cancels a run")]
)
def test_ctrl_c_cancels_the_run(cli: Cli, monkeypatch: Patch, seen: int, told: str) -> None:
    daemon, solve = with_daemon(monkeypatch, FakeDaemon()), Client.solve

    def interrupted(self: Client, body: Any) -> Any:
        yield from islice(solve(self, body), seen)
        raise KeyboardInterrupt

    monkeypatch.setattr(Client, "solve", interrupted)
    assert cli.ends(130, told, "solve", "p").out == ""
    assert daemon.cancelled == (["run-1"] if seen else [])


def completion(**fields: Any) -> dict[str, Any]:
    return {"node": 3, "score": 0.95, "answer": "19", "finish_reason": "stop", **fields}


def finish_with(monkeypatch: Patch, **fields: Any) -> None:
    """Let the daemon's run end with these fields in its object."""
    result = {**RESULT, "completions": [completion()], **fields}
    with_daemon(monkeypatch, FakeDaemon([events.RunFinished(result=result)]))


CUT = completion(finish_reason="step_limit", answer=None)
LOW_SCORE = "The verifier gives this answer a low score (0.00). It is probably wrong."


@pytest.mark.parametrize(
    ("fields", "said", "unsaid"),
    [
        (
            {"answer": None, "votes": []},
            (RESULT["text"], "No answer: no path has a boxed one", "--answers text"),
            "the deadline",
        ),
        (
            {"completions": [completion(), CUT]},
            ("1 of 2 paths reached a token limit before an answer",),
            "No answer",
        ),
        (
            {"completions": [CUT], "answer": None},
            ("every path reached its token limit first", "--max-tokens"),
            "boxed one",
        ),
        (
            {"completions": [completion(), {**CUT, "finish_reason": "unsure"}]},
            ("1 of 2 paths ended where the model was unsure",),
            "token limit",
        ),
        (
            {"unlikely": True, "cut_by": "futility", "trusted": False},
            ("The search gave up", "unlikely to be right", "stopped early: futility"),
            "low score",  # it says the same
        ),
        ({"unboxed": True}, ("No path has a boxed answer.",), "low score"),
        ({"unboxed": False}, (), "No path has a box"),
        ({"trusted": False, "completions": [completion(score=0.004)]}, (LOW_SCORE,), "No answer"),
        ({"trusted": True}, (), "probably wrong"),
        ({"trusted": None}, (), "probably wrong"),
        ({"baseline": True, "deterministic": False}, ("not batch-invariant",), "probably wrong"),
        ({"baseline": True, "deterministic": None}, (), "not batch-invariant"),
        ({"baseline": True, "deterministic": True}, (), "not batch-invariant"),
        ({"deterministic": False}, (), "not batch-invariant"),
    ],
)
def test_what_is_said_of_a_result(
    cli: Cli, monkeypatch: Patch, fields: dict[str, Any], said: tuple[str, ...], unsaid: str
) -> None:
    finish_with(monkeypatch, **fields)
    done = cli("solve", "p")
    has_answer = fields.get("answer", "19") is not None
    assert (done.code, done.out) == ((0, "19\n") if has_answer else (1, ""))
    assert [text for text in said if text not in done.err] == []
    assert unsaid not in done.err


@pytest.mark.parametrize("flag", ["--quiet", "--json"])
def test_no_answer_and_one_of_low_score_are_told_in_every_output(
    cli: Cli, monkeypatch: Patch, flag: str
) -> None:
    finish_with(monkeypatch, answer=None, text="", completions=[], cut_by="deadline")
    done = cli.ends(1, "", "solve", "p", flag)
    assert done.err.startswith("No answer: the deadline passed before a path was complete.")
    assert done.out == "" or json.loads(done.out)["answer"] is None
    finish_with(monkeypatch, trusted=False, completions=[completion(score=0.004)])
    assert LOW_SCORE in cli.ends(0, "", "solve", "p", flag).err.splitlines()


def test_the_help_names_every_strategy_and_the_real_defaults(cli: Cli) -> None:
    spec = {field.name: field.default for field in dataclasses.fields(Request)}
    help_text = cli("solve", "--help").out
    text = " ".join(help_text[help_text.index("─ Options") :].replace("│", " ").split())
    for flag in ("strategy", "n -n", "answers"):
        option = text.partition(f" --{flag.replace('_', '-')} ")[2].partition("[default: ")[2]
        # "(beam)]", or "(beam; another one where …)]"
        default = spec[flag.split()[0]]
        assert option.startswith((f"({default})]", f"({default}; ")), flag
    for field in ("branching", "aggregate", "selection", "max_steps"):
        assert REQUEST_FIELDS[field].endswith(f"({spec[field]})")
        assert f" {field} " in text


@pytest.mark.parametrize("columns", ["80", "100"])
def test_no_option_of_any_command_is_cut(cli: Cli, monkeypatch: Patch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for command in ("solve", "chat", "up", "simulate", "bench flashtts", "models eval"):
        options = cli(*command.split(), "--help").out
        assert not re.search(r"--[a-z-]*…", options), command
