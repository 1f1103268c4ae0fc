"""`chat`: what it sends, its commands, and how its turns are told apart."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import httpx
import pytest

from flashedge.cli.chat import turns
from flashedge.cli.main import main
from tests.support.cli_rig import Cli, Terminal, serve_many_turns
from tests.support.fake_daemon import CutStream, FakeDaemon
from tests.support.hostile import strip_sequences
from tests.support.screen import open_screen
from tests.support.story import RESULT, encode_chat_chunk


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
    serve_many_turns(monkeypatch)
    out, _ = talk(cli, monkeypatch, ["hi", "/seed 4", "again", "/new", "third"], "--system", "s")
    assert out.count("Hello\u2028 there\n") == 3
    first, second, third = daemon.bodies("/v1/chat/completions")
    roles = [m["role"] for m in second["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert "seed" not in first
    assert second["seed"] == 4
    assert [m["content"] for m in third["messages"]] == ["s", "third"]


def test_a_single_turn_pair_gets_only_the_latest_question(
    cli: Cli, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["one", "two", "/search beam-2", "three"]
    _, err = talk(cli, monkeypatch, lines, "--system", "s")
    plain = [[m["content"] for m in b["messages"]] for b in daemon.bodies("/v1/chat/completions")]
    assert plain == [["s", "one"], ["s", "two"]]
    (searched,) = daemon.bodies("/v1/solve")
    assert [m["content"] for m in searched["messages"]] == ["s", "three"]
    notice = "Pair bundled answers one problem at a time: earlier messages are not sent."
    assert err.splitlines().count(notice) == 1


def test_messages_of_many_lines(
    cli: Cli, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["first \\", "second\\", "third", '"""', "a", "", "b", '"""', '"""x', 'y"""']
    talk(cli, monkeypatch, lines)
    sent = [b["messages"][-1]["content"] for b in daemon.bodies("/v1/chat/completions")]
    assert sent == ["first\nsecond\nthird", "a\n\nb", "x\ny"]


def test_chat_by_search_leaves_one_line_of_its_tree(
    cli: Cli, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["/search beam-2", "what is 12 + 7?", "/search off", "bye"]
    out, err = talk(cli, monkeypatch, lines)
    body = daemon.bodies("/v1/solve")[0]
    assert (body["strategy"], body["n"], body["pair"]) == ("beam", 2, "bundled")
    assert body["messages"] == [{"role": "user", "content": "what is 12 + 7?"}]
    assert RESULT["text"] in out
    assert "search: beam-2" in err
    assert len(daemon.bodies("/v1/chat/completions")) == 1
    assert "\nfinished  1 complete · 14 tokens" in err
    assert "0.90" not in out
    assert "● 0.90" not in err
    out, _ = talk(cli, monkeypatch, ["what is 12 + 7?", "/tree"], "--search", "beam-2")
    assert "● 0.90" in out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/nope", "there is no command /nope"),
        ("/seed x", "seed is 'x'"),
        ("/tree", "no search yet"),
        ("/search !", "no strategy '!'"),
        ("/search beem-4", "did you mean 'beam'?"),
        ("/search beam-9999", "n is 9999; it must be an integer in [1, 1024]"),
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
    for command in ("/search", "/seed", "/tree", "/new", "/exit", "/quit", "/help"):
        assert command in out
    assert daemon.bodies("/v1/chat/completions") == []


# ---------------------------------------------------------------- how turns look


def type_on_screen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lines: list[str], *options: str
) -> str:
    """What a terminal shows, without looks. What is typed is not echoed on it."""
    monkeypatch.setenv("FLASHEDGE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "stdin", Terminal("\n".join(lines) + "\n"))
    screen = open_screen(monkeypatch, columns=60)
    assert main(["chat", *options]) == 0
    return strip_sequences(screen.printed)


def say(monkeypatch: pytest.MonkeyPatch, daemon: FakeDaemon, *pieces: str) -> None:
    """Let the daemon's next replies have these pieces."""
    body = "".join(encode_chat_chunk({"content": piece}) for piece in pieces)
    reply = httpx.Response(200, stream=CutStream(f"{body}data: [DONE]\n\n".encode(), None))
    monkeypatch.setitem(daemon.errors, "POST /v1/chat/completions", reply)


def test_on_a_terminal_turns_have_a_prompt_an_answer_apart_and_a_line_below(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    say(monkeypatch, daemon, "**So** it is", " \\boxed{19}.")
    shown = type_on_screen(monkeypatch, tmp_path, ["12 + 7", "/search beam-2", "again"])
    first, _, second = shown.partition("─" * 60)
    assert first.startswith("pair bundled; /help lists the commands\nbundled > \n")
    assert "So it is \\boxed{19}.\n\nanswer  19\n" in first
    assert "bundled · beam-2 > " in second
    below = second.partition("bundled · beam-2 > ")[2]
    assert f"{RESULT['text']}\n\nvotes (paths, weight): 19 (1, 0.90)" in below
    assert below.count("answer  19\n" + "─" * 60) == 1


def test_in_a_pipe_each_answer_but_the_first_stands_below_its_question(
    cli: Cli, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = ["one", "/search beam-2", '"""', "two", "lines", '"""', "/search off", "three"]
    out, _ = talk(cli, monkeypatch, questions)
    reply = "Hello\u2028 there\n"
    assert out == f"{reply}\n[2] two lines\n{RESULT['text']}\n\n[3] three\n{reply}"


def test_questions_from_a_pipe_are_shown_on_a_terminal(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FLASHEDGE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\n"))
    screen = open_screen(monkeypatch)
    assert main(["chat"]) == 0
    assert strip_sequences(screen.printed).startswith("bundled > one\n\nHello")


def test_the_prompt_of_a_redirected_chat_is_no_part_of_its_output(
    cli: Cli, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("one\n"))
    done = cli("chat")
    assert done.out == "Hello\u2028 there\n"
    assert "bundled > " in done.err


def test_a_long_reply_shows_its_end_while_it_grows_and_all_of_it_in_the_end(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(turns, "LEAST_PAUSE_S", 0.0)
    monkeypatch.setattr(turns, "DRAWING_SHARE", 1e9)
    say(monkeypatch, daemon, *(f"line {i}\n" for i in range(100)))
    shown = type_on_screen(monkeypatch, tmp_path, ["go"])
    assert shown.count("line 50\n") > 1
    last = shown.rpartition("line 0\n")[2]
    assert [line for line in last.splitlines() if line.startswith("line")] == [
        f"line {i}" for i in range(1, 100)
    ]


def test_a_reply_that_is_stopped_stays(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def stop(request: httpx.Request) -> httpx.Response:
        stream = CutStream(encode_chat_chunk({"content": "as far as"}).encode(), KeyboardInterrupt)
        return httpx.Response(200, stream=stream)

    monkeypatch.setattr(daemon, "handler", stop)
    shown = type_on_screen(monkeypatch, tmp_path, ["go", "/help"])
    assert "as far as\n" in shown
    assert "stopped" in shown
    assert "/quit" in shown
