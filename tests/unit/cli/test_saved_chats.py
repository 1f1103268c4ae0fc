"""Conversations on disk: what is written when, how one goes on, what is said of damage."""

import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from flashedge.cli.chat.saved import SavedChat, SavedChats
from flashedge.config import load_config
from flashedge.files import journal
from tests.support.cli_rig import Cli, Done, Patch, Terminal, serve_many_turns
from tests.support.fake_daemon import CutStream, FakeDaemon
from tests.support.hostile import HOSTILE, find_acting
from tests.support.story import CHAT, RESULT

REPLY = "Hello\u2028 there"
Talk = Callable[..., Done]


def folder() -> Path:
    return load_config().state_dir / "chats"


def only_file() -> Path:
    (path,) = folder().iterdir()
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_messages(path: Path) -> list[str]:
    return [turn["message"] for turn in read_lines(path)[1:]]


def test_turns_are_on_the_disk(talk: Talk, daemon: FakeDaemon, monkeypatch: Patch) -> None:
    seen: list[list[str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(read_messages(only_file()) if seen else [])
        return httpx.Response(200, stream=CutStream(CHAT, None))

    monkeypatch.setattr(daemon, "handler", answer)
    talk("one\ntwo\nthree\n", "--system", "s")
    assert seen == [[], ["one"], ["one", "two"]]
    opening, *turns = read_lines(only_file())
    assert opening == {"pair": "bundled", "system": "s"}
    said = [(turn["message"], turn["reply"]) for turn in turns]
    assert said == [(message, REPLY) for message in ("one", "two", "three")]


def test_a_file_begins_with_a_turn_and_only_its_owner_reads_it(talk: Talk) -> None:
    talk("/search beam-2\n/help\n")
    assert not folder().exists()
    talk("one\n")
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (only_file(), folder())]
    assert modes == [0o600, 0o700]


def test_a_conversation_goes_on_with_its_search(talk: Talk, daemon: FakeDaemon) -> None:
    talk("one\n/search beam-2\ntwo\n", "--system", "s")
    assert read_lines(only_file())[2]["run"] == RESULT["id"]
    done = talk("three\n", "--continue", only_file().stem[:3])
    body = daemon.bodies("/v1/solve")[-1]
    assert (body["strategy"], body["n"]) == ("beam", 2)
    sent = [message["content"] for message in body["messages"]]
    assert sent == ["s", "three"], "the bundled pair knows single turns only"
    assert read_messages(only_file()) == ["one", "two", "three"]
    assert "earlier messages are not sent" in done.err


def test_earlier_turns_are_sent(talk: Talk, daemon: FakeDaemon, monkeypatch: Patch) -> None:
    serve_many_turns(monkeypatch)
    talk("one\n")
    talk("two\n", "--continue")
    sent = daemon.bodies("/v1/chat/completions")[-1]["messages"]
    assert [message["content"] for message in sent] == ["one", REPLY, "two"]


def test_the_last_turn_is_shown(talk: Talk, cli: Cli, monkeypatch: Patch) -> None:
    talk("one\ntwo\n")
    monkeypatch.setattr(sys, "stdin", Terminal("/exit\n"))
    done = cli.ends(0, f"conversation {only_file().stem}, 2 turns; the last:", "chat", "-c")
    assert f"kept as {only_file().stem}; to go on: flashedge chat --continue" in done.err
    assert REPLY in done.out


def test_the_one_used_last_goes_on_and_is_listed_first(talk: Talk, cli: Cli) -> None:
    done = cli("chat", "--list")
    assert (done.code, done.out, done.err) == (0, "", "no conversations yet\n")
    talk("one\n/new\ntwo \x1b[31m\n")
    older, _ = sorted(folder().iterdir(), key=read_messages)
    for path in folder().iterdir():
        os.utime(path, (2, 2) if path == older else (1, 1))
    talk("three\n", "--continue")
    assert read_messages(older) == ["one", "three"]
    done = cli("chat", "--list")
    _, first, second = done.out.splitlines()
    assert first.split()[0] == older.stem
    assert first.split()[3:] == ["2", "bundled", "one"]
    assert second.split()[3:] == ["1", "bundled", "two", "␛[31m"]
    assert str(folder()) in done.err


def test_nothing_is_kept(talk: Talk, daemon: FakeDaemon, monkeypatch: Patch) -> None:
    talk("one\n/search beam-2\ntwo\n", "--no-save")
    assert not folder().exists()
    assert daemon.deleted == [daemon.bodies("/v1/solve")[0]["id"]]
    with monkeypatch.context() as patch:
        patch.setenv("FLASHEDGE_KEEP_CHATS", "0")
        talk("one\n")
    assert not folder().exists()
    talk("one\n")
    before = only_file().read_bytes()
    talk("two\n", "--continue", "--no-save")
    assert only_file().read_bytes() == before


def test_the_oldest_make_room(talk: Talk, monkeypatch: Patch, daemon: FakeDaemon) -> None:
    monkeypatch.setenv("FLASHEDGE_KEEP_CHATS", "2")
    for number, message in enumerate(("one", "two", "three")):
        talk(f"{message}\n")
        for path in folder().iterdir():
            if read_lines(path)[1]["message"] == message:
                os.utime(path, (number + 1, number + 1))
    kept = sorted(read_lines(path)[1]["message"] for path in folder().iterdir())
    assert kept == ["three", "two"]
    with_held = SavedChat.resume(SavedChats(load_config()).list()[-1])
    talk("four\n")
    assert with_held.path.exists()
    with_held.close()


def test_a_line_that_a_crash_tore_is_no_turn(talk: Talk) -> None:
    talk("one\ntwo\n")
    path = only_file()
    path.write_bytes(path.read_bytes()[:-9])
    talk("three\n", "--continue")
    assert read_messages(path) == ["one", "three"]


TURN = b'{"message": "m", "reply": "r", "at": %b}'
DAMAGES = [b"not json", b"[" * 100_000, b"\xff\xfe", b"", b"7", b'{"message": "m"}']
DAMAGES += [b'{"message": 1, "reply": "r", "at": 1}', TURN % b"null", TURN % b'1, "search": 3']


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_line_is_named(talk: Talk, cli: Cli, damage: bytes) -> None:
    talk("one\ntwo\n")
    path = only_file()
    opening, first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(opening + damage + b"\n" + second)
    damaged = f"error: {path}, line 2 is damaged\n  remove the line\n"
    assert talk("three\n", "--continue", code=2).err == damaged
    assert "line 2 is damaged" in cli.ends(0, "", "chat", "--list").out
    (unreadable := folder() / "folder.jsonl").mkdir()
    assert "can't read" in cli.ends(0, "", "chat", "--list").out
    unreadable.rmdir()
    path.write_bytes(damage + b"\n" + first)
    assert f"{path}, line 1 is damaged\n  remove the file" in talk("", "--continue", code=2).err


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_conversation_is_text(talk: Talk, cli: Cli, text: str) -> None:
    talk("one\n")
    opening = {"pair": f"bundled{text}", "system": text}
    turn = {"message": text, "reply": text, "at": 1.0}
    only_file().write_text(f"{json.dumps(opening)}\n{json.dumps(turn)}\n", encoding="utf-8")
    for done in (cli("chat", "--list"), talk("two\n", "--continue", code=2)):
        assert not find_acting(done.out + done.err)


def test_what_cannot_be_written_is_written_later(talk: Talk, monkeypatch: Patch) -> None:
    write, calls = journal.write_at_end, 0

    def write_at_end(file: Any, data: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls <= 2:
            raise OSError(28, "No space left on device")
        write(file, data)

    monkeypatch.setattr("flashedge.cli.chat.saved.write_at_end", write_at_end)
    done = talk("one\ntwo\nthree\n")
    assert done.out.count(REPLY) == 3
    assert done.err.count("No space left on device. The chat goes on") == 1
    assert read_messages(only_file()) == ["one", "two", "three"]


def test_a_folder_that_cannot_be_made(cli: Cli, daemon: FakeDaemon, monkeypatch: Patch) -> None:
    folder().parent.mkdir(parents=True)
    folder().write_text("a file")
    monkeypatch.setattr(sys, "stdin", Terminal("one\ntwo\n"))
    done = cli("chat")
    assert (done.code, done.out.count(REPLY), done.err.count("can't write")) == (0, 2, 1)
    assert "to go on: flashedge chat" not in done.err


def test_a_conversation_is_open_in_one_terminal(talk: Talk) -> None:
    talk("one\n")
    held = SavedChat.resume(only_file())
    done = talk("two\n", "--continue", code=2)
    held.close()
    assert f"conversation {only_file().stem} is open in another terminal" in done.err


def test_what_is_refused(talk: Talk) -> None:
    assert "there is no conversation yet" in talk("", "--continue", code=2).err
    talk("one\n", "--system", "s")
    for options, said in (
        (["abc"], "'abc' is the id of a conversation only after --continue"),
        (["--continue", "../x"], "there is no conversation '../x'"),
        (["--continue", "--system", "other"], "a conversation keeps its system message"),
    ):
        assert said in talk("two\n", *options, code=2).err
    for name in ("abc111", "abc222"):
        (folder() / f"{name}.jsonl").write_text("x\n")
    said = "2 conversations begin with 'abc': abc"
    assert said in talk("two\n", "--continue", "abc", code=2).err
