"""`chat`: what it sends, its commands, and how its turns are told apart."""

import io
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from flashedge.cli.chat import conversation
from flashedge.cli.main import main
from flashedge.config import load_config
from flashedge.daemon import control as daemon_control
from tests.support.cli_rig import Cli, Done, Patch, Terminal, serve_many_turns
from tests.support.fake_daemon import CutStream, FakeDaemon
from tests.support.hostile import strip_sequences
from tests.support.screen import open_screen
from tests.support.story import RESULT, encode_chat_chunk

Talk = Callable[..., Done]
REPLY = "Hello\u2028 there\n"
PLAIN = "/v1/chat/completions"


def test_chat_streams_and_remembers(talk: Talk, daemon: FakeDaemon, monkeypatch: Patch) -> None:
    serve_many_turns(monkeypatch)
    done = talk("hi\n/seed 4\nagain\n/new\nthird\n", "--system", "s")
    assert done.out.count(REPLY) == 3
    first, second, third = daemon.bodies(PLAIN)
    assert [m["role"] for m in second["messages"]] == ["system", "user", "assistant", "user"]
    assert ("seed" in first, second["seed"]) == (False, 4)
    assert [m["content"] for m in third["messages"]] == ["s", "third"]


def test_messages_of_many_lines_and_commands(talk: Talk, daemon: FakeDaemon) -> None:
    text = 'first \\\nsecond\\\nthird\n"""\na\n\nb\n"""\n"""x\ny"""\n'
    done = talk(f"{text}/help\n/exit\nnever sent\n")
    commands = ("/search", "/seed", "/tree", "/new", "/exit", "/quit", "/help")
    assert [command for command in commands if command not in done.out] == []
    sent = [body["messages"][-1]["content"] for body in daemon.bodies(PLAIN)]
    assert sent == ["first\nsecond\nthird", "a\n\nb", "x\ny"]


def test_chat_talks_to_the_daemons_pair(talk: Talk, daemon: FakeDaemon, monkeypatch: Patch) -> None:
    record = replace(daemon_control.find_daemon(load_config()), pair="qwen-1.5b")
    monkeypatch.setattr(daemon_control, "find_daemon", lambda config: record)
    talk("one\n")
    talk("two\n", "--pair", "bundled")
    monkeypatch.setenv("FLASHEDGE_PAIR", "smollm2-135m")
    talk("three\n")
    asked = [body["model"] for body in daemon.bodies(PLAIN)]
    assert asked == ["qwen-1.5b", "bundled", "smollm2-135m"]


def test_a_single_turn_pair_gets_only_the_latest_question(talk: Talk, daemon: FakeDaemon) -> None:
    done = talk("one\ntwo\n/search beam-2\nthree\n", "--system", "s")
    plain = [[m["content"] for m in body["messages"]] for body in daemon.bodies(PLAIN)]
    assert plain == [["s", "one"], ["s", "two"]]
    (searched,) = daemon.bodies("/v1/solve")
    assert [m["content"] for m in searched["messages"]] == ["s", "three"]
    notice = "Pair bundled answers one problem at a time: earlier messages are not sent."
    assert done.err.splitlines().count(notice) == 1


def test_chat_by_search_leaves_one_line_of_its_tree(talk: Talk, daemon: FakeDaemon) -> None:
    done = talk("/search beam-2\nwhat is 12 + 7?\n/search off\nbye\n")
    (body,) = daemon.bodies("/v1/solve")
    assert (body["strategy"], body["n"], body["pair"]) == ("beam", 2, "bundled")
    assert body["messages"] == [{"role": "user", "content": "what is 12 + 7?"}]
    assert (RESULT["text"] in done.out, "0.90" in done.out) == (True, False)
    assert len(daemon.bodies(PLAIN)) == 1
    for said in ("search: beam-2", "\nfinished  1 complete · 14 tokens"):
        assert said in done.err
    assert "● 0.90" not in done.err
    assert "● 0.90" in talk("what is 12 + 7?\n/tree\n", "--search", "beam-2").out


def test_a_wrong_search_starts_no_daemon(talk: Talk, monkeypatch: Patch) -> None:
    monkeypatch.setattr("flashedge.cli.chat.command.connect_ready", None)
    assert "did you mean 'beam'?" in talk("", "--search", "beem-4", code=2).err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/nope", "there is no command /nope"),
        ("/seed x", "seed is 'x'"),
        ("/seed ²", "seed is '²'"),
        (f"/seed {'9' * 5000}", "seed is '999"),
        ("/tree", "there is no search yet"),
        ("/search !", "no strategy '!'"),
    ],
)
def test_chat_goes_on_after_a_mistake(talk: Talk, line: str, said: str) -> None:
    done = talk(f"{line}\nhi\n")
    assert (said in done.err, "there" in done.out) == (True, True)


Screen = Callable[[io.StringIO], str]


@pytest.fixture
def type_on_screen(daemon: FakeDaemon, monkeypatch: Patch, tmp_path: Path) -> Screen:
    """What a terminal shows, without looks. What is typed is not echoed on it."""

    def run(typed: io.StringIO) -> str:
        monkeypatch.setenv("FLASHEDGE_HOME", str(tmp_path / "home"))
        monkeypatch.setattr(sys, "stdin", typed)
        screen = open_screen(monkeypatch, columns=60)
        assert main(["chat"]) == 0
        return strip_sequences(screen.printed)

    return run


def say(daemon: FakeDaemon, *pieces: str) -> None:
    body = "".join(encode_chat_chunk({"content": piece}) for piece in pieces)
    stream = CutStream(f"{body}data: [DONE]\n\n".encode(), None)
    daemon.errors[f"POST {PLAIN}"] = httpx.Response(200, stream=stream)


def test_turns_on_a_terminal(daemon: FakeDaemon, type_on_screen: Screen) -> None:
    say(daemon, "**So** it is", " \\boxed{19}.")
    shown = type_on_screen(Terminal("12 + 7\n/search beam-2\nagain\n"))
    first, _, second = shown.partition("─" * 60)
    assert first.startswith("pair bundled; /help lists the commands\nbundled > \n")
    assert "So it is \\boxed{19}.\n\nanswer  19\n" in first
    assert "bundled · beam-2 > " in second
    below = second.partition("bundled · beam-2 > ")[2]
    assert f"{RESULT['text']}\n\nvotes (paths, weight): 19 (1, 0.90)" in below
    assert below.count("answer  19\n" + "─" * 60) == 1


def test_in_a_pipe_each_answer_but_the_first_stands_below_its_question(talk: Talk) -> None:
    done = talk('one\n/search beam-2\n"""\ntwo\nlines\n"""\n/search off\nthree\n')
    assert done.out == f"{REPLY}\n[2] two lines\n{RESULT['text']}\n\n[3] three\n{REPLY}"


def test_prompts(cli: Cli, daemon: FakeDaemon, monkeypatch: Patch, type_on_screen: Screen) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("one\n"))
    done = cli("chat")
    assert (done.out, "bundled > " in done.err) == (REPLY, True), "the prompt is no output"
    shown = type_on_screen(io.StringIO("one\n"))
    assert shown.startswith("bundled > one\n\nHello"), "questions from a pipe are shown"


def test_a_long_reply(daemon: FakeDaemon, monkeypatch: Patch, type_on_screen: Screen) -> None:
    monkeypatch.setattr(conversation, "LEAST_PAUSE_S", 0.0)
    monkeypatch.setattr(conversation, "DRAWING_SHARE", 1e9)
    say(daemon, *(f"line {i}\n" for i in range(100)))
    shown = type_on_screen(Terminal("go\n"))
    assert shown.count("line 50\n") > 1
    last = shown.rpartition("line 0\n")[2].splitlines()
    lines = [line for line in last if line.startswith("line")]
    assert lines == [f"line {i}" for i in range(1, 100)]


def test_a_reply_that_is_stopped_stays(daemon: FakeDaemon, type_on_screen: Screen) -> None:
    stream = CutStream(encode_chat_chunk({"content": "as far as"}).encode(), KeyboardInterrupt)
    daemon.errors[f"POST {PLAIN}"] = httpx.Response(200, stream=stream)
    shown = type_on_screen(Terminal("go\n/help\n"))
    assert [text in shown for text in ("as far as\n", "stopped", "/quit")] == [True] * 3
