"""`solve` and `chat`: what goes to the daemon, what comes to stdout, and the exit codes."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from cli_rig import Cli, cli_for, with_daemon
from fake_daemon import RESULT, STORY, FakeDaemon

from flashedge import events
from flashedge.client.sync_client import Client


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    return cli_for(tmp_path, monkeypatch, capfd)


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> FakeDaemon:
    return with_daemon(monkeypatch, FakeDaemon())


def test_the_answer_alone_on_stdout_the_rest_on_stderr(cli: Cli, daemon: FakeDaemon) -> None:
    done = cli("solve", "What is 12 + 7?")
    assert (done.code, done.out) == (0, "19\n")
    assert "✓ 0.95" in done.err
    assert "\\boxed{19}" in done.err
    assert "votes (paths, weight): 19 (1, 0.90), 18 (1, 0.20)" in done.err
    assert daemon.bodies("/v1/solve") == [{"problem": "What is 12 + 7?", "stream": True}]


def test_quiet(cli: Cli, daemon: FakeDaemon) -> None:
    done = cli("solve", "-q", "p")
    assert (done.out, done.err) == ("19\n", "")


def test_json_is_the_runs_object(cli: Cli, daemon: FakeDaemon) -> None:
    done = cli("solve", "--json", "p")
    assert json.loads(done.out) == RESULT
    assert done.err == ""


def test_all_options_reach_the_daemon(cli: Cli, daemon: FakeDaemon) -> None:
    options = (
        "--strategy beam-16 --branching 2 --aggregate min --selection best --seed 5"
        " --temperature 0.5 --top-p 0.9 --top-k 40 --max-step-tokens 64 --max-steps 9"
        " --max-tokens 400 --budget-tokens 5000 --deadline 7.5 --pair bundled --baseline"
    )
    assert cli("solve", "p", *options.split()).code == 0
    assert daemon.bodies("/v1/solve") == [
        {
            "problem": "p",
            "pair": "bundled",
            "strategy": "beam",
            "n": 16,
            "branching": 2,
            "aggregate": "min",
            "selection": "best",
            "seed": 5,
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 40,
            "max_step_tokens": 64,
            "max_steps": 9,
            "max_tokens": 400,
            "token_budget": 5000,
            "deadline_s": 7.5,
            "baseline": True,
            "stream": True,
        }
    ]


def test_problem_from_a_file_and_from_stdin(
    cli: Cli, daemon: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p.txt").write_text("from a file\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("from stdin\n"))
    assert cli("solve", "--file", str(tmp_path / "p.txt")).code == 0
    assert cli("solve", "-").code == 0
    sent = [body["problem"] for body in daemon.bodies("/v1/solve")]
    assert sent == ["from a file", "from stdin"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give the problem once"),
        (["p", "--file", "f"], "give the problem once"),
        (["  "], "the problem is empty"),
        (["--file", "/no/such/file"], "can't read /no/such/file"),
        (["p", "--temperature", "nan"], "temperature is nan"),
        (["p", "--deadline", "inf"], "deadline is inf"),
        (["p", "--strategy", "beam-16", "-n", "8"], "contradict each other"),
        (["p", "--strategy", "Beam!"], "is not a name"),
        (["p", "-n", "four"], "Invalid value for '-n'"),
        (["p", "--no-such-option"], "No such option"),
    ],
)
def test_bad_input_is_exit_2(cli: Cli, daemon: FakeDaemon, arguments: list[str], said: str) -> None:
    done = cli("solve", *arguments)
    assert done.code == 2
    assert done.out == ""
    assert said in done.err
    assert daemon.bodies("/v1/solve") == []


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (400, "invalid_request", 2),
        (404, "not_found", 2),
        (503, "queue_full", 2),
        (503, "engine_dead", 3),
        (503, "daemon_error", 4),
        (507, "store_error", 5),
    ],
)
def test_the_daemons_errors(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, status: int, code: str, exit_code: int
) -> None:
    told = {"error": {"message": "as told", "code": code, "hint": "do this"}}
    with_daemon(
        monkeypatch, FakeDaemon(errors={"POST /v1/solve": httpx.Response(status, json=told)})
    )
    done = cli("solve", "p")
    assert (done.code, done.out) == (exit_code, "")
    assert done.err.endswith("error: as told\n  do this\n")


def test_a_run_that_fails(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = events.RunFailed(error="the generator died", code="engine_dead", hint="again")
    with_daemon(monkeypatch, FakeDaemon([*STORY[:4], failed]))
    done = cli("solve", "p")
    assert (done.code, done.out) == (3, "")
    assert "error: the generator died\n  again" in done.err


def test_a_run_that_somebody_cancels(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    with_daemon(monkeypatch, FakeDaemon([events.RunCancelled(reason="by hand")]))
    done = cli("solve", "p")
    assert done.code == 2
    assert "run run-1 was cancelled: by hand" in done.err


def test_ctrl_c_cancels_the_run(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = with_daemon(monkeypatch, FakeDaemon())
    solve = Client.solve

    def interrupted(self: Client, body: Any) -> Any:
        stream = solve(self, body)
        yield next(stream)
        yield next(stream)
        raise KeyboardInterrupt

    monkeypatch.setattr(Client, "solve", interrupted)
    done = cli("solve", "p")
    assert (done.code, done.out) == (130, "")
    assert daemon.cancelled == ["run-1"]
    assert "cancelled run run-1" in done.err


def test_no_boxed_answer_prints_the_best_path(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    result = {**RESULT, "answer": None, "votes": []}
    with_daemon(monkeypatch, FakeDaemon([events.RunFinished(result=result)]))
    done = cli("solve", "p")
    assert done.code == 0
    assert done.out.strip() == RESULT["text"]
    assert "no path holds a boxed answer" in done.err


# ---------------------------------------------------------------- chat


def talk(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, lines: list[str], *options: str
) -> tuple[str, str]:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines) + "\n"))
    done = cli("chat", *options)
    assert done.code == 0
    return done.out, done.err


def test_chat_streams_and_remembers(
    cli: Cli, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, _ = talk(cli, monkeypatch, ["hi", "/seed 4", "again", "/new", "third"], "--system", "s")
    assert out.count("Hello\u2028 there\n") == 3
    first, second, third = daemon.bodies("/v1/chat/completions")
    roles = [m["role"] for m in second["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert "seed" not in first
    assert second["seed"] == 4
    assert [m["content"] for m in third["messages"]] == ["s", "third"]


def test_chat_by_search(cli: Cli, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["/search beam-2", "what is 12 + 7?", "/tree", "/search off", "bye"]
    out, err = talk(cli, monkeypatch, lines)
    body = daemon.bodies("/v1/solve")[0]
    assert (body["strategy"], body["n"], body["pair"]) == ("beam", 2, "bundled")
    assert body["messages"] == [{"role": "user", "content": "what is 12 + 7?"}]
    assert RESULT["text"] in out
    assert "finished" in out  # /tree
    assert "search: beam 2" in err
    assert len(daemon.bodies("/v1/chat/completions")) == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/nope", "there is no command /nope"),
        ("/seed x", "seed is 'x'"),
        ("/tree", "no search yet"),
        ("/search !", "is not a name"),
    ],
)
def test_chat_goes_on_after_a_mistake(
    cli: Cli, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, line: str, said: str
) -> None:
    out, err = talk(cli, monkeypatch, [line, "hi"])
    assert said in err
    assert "there" in out


def test_chat_help_and_exit(cli: Cli, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    out, _ = talk(cli, monkeypatch, ["/help", "/exit", "never sent"])
    for command in ("/search", "/seed", "/tree", "/new", "/exit", "/help"):
        assert command in out
    assert daemon.bodies("/v1/chat/completions") == []
