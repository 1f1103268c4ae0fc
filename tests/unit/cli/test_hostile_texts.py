"""No text from outside acts on the terminal, whichever command prints it."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tomlkit
import typer
from hypothesis import HealthCheck, given, settings

from flashedge.cli import connection, main, output
from flashedge.cli.main import main as run_command
from flashedge.errors import RequestError
from flashedge.events import Event, from_json, to_json
from flashedge.literal import join_surrogates
from tests.support import hostile as texts
from tests.support import screen as screens
from tests.support.cli_rig import Cli, Patch, Terminal, with_daemon
from tests.support.fake_daemon import CutStream, FakeDaemon
from tests.support.hostile import HARMLESS, HOSTILE, find_acting, poison, strip_sequences
from tests.support.story import STORY


class HostileDaemon(FakeDaemon):
    """Every text that it sends ends with the same words."""

    def __init__(self, text: str, **options: Any) -> None:
        story: list[Event] = [from_json(poison(to_json(event), text)) for event in STORY]
        super().__init__(story, **options)
        self.text, self.detail = text, "well"

    def answer(self, request: httpx.Request) -> Any:
        reply = super().answer(request)
        if request.url.path == "/v1/chat/completions":
            half = len(self.text) // 2
            pieces = [{"reasoning_content": self.text}]
            pieces += [{"content": part} for part in (self.text[:half], self.text[half:])]
            frames = [json.dumps({"choices": [{"delta": piece}]}) for piece in pieces]
            body = "".join(f"data: {frame}\n\n" for frame in (*frames, "[DONE]"))
            return httpx.Response(200, stream=CutStream(body.encode(), None))
        if isinstance(reply.stream, CutStream):
            return reply
        body = json.dumps(poison(reply.json(), self.text))
        return httpx.Response(reply.status_code, content=body.encode())


def name_models(text: str) -> str:
    """The models.toml of a user whose names, sources and descriptions hold `text`."""
    model = {"source": f"o/{text}", "max_model_len": 1024, "dtype": "float32"}
    models = {"generators": {f"g{text}": model}}
    models |= {"verifiers": {f"v{text}": {**model, "family": "qwen_prm"}}}
    pair = {"generator": f"g{text}", "verifier": f"v{text}", "description": text}
    pair |= {"max_step_tokens": 64, "max_path_tokens": 512}
    return tomlkit.dumps({**models, "pairs": {f"p{text}": pair}})


def print_with(text: str, arguments: list[str], home: Path, typed: str = "") -> str:
    """What a command prints on a terminal where every text from outside holds `text`: the daemon's,
    and those of the state folder, the log, the settings and the pairs."""
    named = "".join(c for c in text if c not in "\x00/\n" and not "\ud800" <= c < "\ue000")[:60]
    folder = home / named.strip(" .")
    for name in ("logs", "config"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "logs" / "daemon.log").write_text(text, encoding="utf-8", errors="replace")
    pairs = name_models(join_surrogates(text))
    (folder / "config" / "models.toml").write_text(pairs, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLASHEDGE_HOME", str(folder))
        patch.setenv("HF_HOME", str(home / "hf"))
        with_daemon(patch, HostileDaemon(text))
        patch.setattr(sys, "stdin", Terminal(typed))
        screen = screens.open_screen(patch)
        run_command(arguments)
        return screen.printed


OWN = {"\x1b[0m", "\x1b[1;31m", "\x1b[2m", "\x1b[33m", "\x1b[1A", "\x1b[2K"}
"""Sequences of errors, notes and warnings, and of trees and bars. No hostile text has them."""
MARKDOWN = re.compile(r"\r?\x1b\[(?:(?:1|2|4|3[0-7]|40)[;m])+")
"""Bold, dim, underlined and coloured: what Markdown may look like in `chat`."""


def check_screen(hostile: str, harmless: str, command: str = "") -> None:
    assert not find_acting(strip_sequences(hostile))
    new = texts.find_sequences(hostile) - texts.find_sequences(harmless) - OWN
    assert not {s for s in new if command != "chat" or not MARKDOWN.fullmatch(s)}


ARGUMENTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("ps", "logs", "config show", "config path", "models ls"), ()),
    **dict.fromkeys(("tui", "calibrate", "down", "unload"), ("{}",)),
    **dict.fromkeys(("config unset", "models pull", "models rm"), ("x{}",)),
    **dict.fromkeys(("runs show", "runs export"), ("run-1",)),
    **dict.fromkeys(("runs replay", "runs verify", "runs rm"), ("run-1{}",)),
    **dict.fromkeys(("profile", "simulate"), ("--pair", "x{}")),
    "solve": ("2 + 2 {}",),
    "score": ("2 + 2 {}", "4"),
    "chat": ("--system", "{}"),
    "launch": ("aider", "--model", "p{}", "--print", "--", "{}"),
    "runs ls": ("--full",),
    "up": ("--pair", "{}"),
    "config set": ("pair", "x{}"),
    "models show": ("p{}",),
    "models import": ("{}.gguf",),
    "models eval": ("x{}", "--problems", "{}"),
    "doctor": ("--fit", "x{}"),
    "bench flashtts": ("--problems", "x{}"),
    "bench load": ("--problems", "x{}", "--rate", "1"),
}
"""Of each command, with the text in them where it shows them, and else in what it reads."""


def call(command: str, text: str) -> list[str]:
    return [*command.split(), *(one.replace("{}", text) for one in ARGUMENTS[command])]


TYPED = {"chat": "hello\n/tree\n/search x\x1b\n/search beam-2\nagain\n/tree\n"}


def list_commands() -> Iterator[str]:
    def walk(command: Any, path: tuple[str, ...]) -> Iterator[str]:
        if not hasattr(command, "list_commands"):
            yield " ".join(path)
            return
        context = typer.Context(command)  # the lab's commands are imported when they are asked for
        for name in command.list_commands(context):
            yield from walk(command.get_command(context, name), (*path, name))

    return walk(typer.main.get_command(main.app), ())


def test_every_command_is_here() -> None:
    assert set(ARGUMENTS) == set(list_commands())


@pytest.mark.parametrize("command", ARGUMENTS)
def test_a_command_shows_text_as_text(command: str, tmp_path: Path) -> None:
    typed = TYPED.get(command, "")
    harmless = print_with(HARMLESS, call(command, HARMLESS), tmp_path / "harmless", typed)
    assert HARMLESS in " ".join(harmless.split())
    whole = "".join(HOSTILE[:7])
    for number, text in enumerate((*HOSTILE, whole)):
        home = tmp_path / str(number)
        check_screen(print_with(text, call(command, text), home, typed), harmless, command)


@pytest.mark.parametrize("command", ["solve", "chat", "runs ls", "runs show", "ps"])
def test_any_text_is_shown_as_text(command: str, tmp_path: Path) -> None:
    typed = TYPED.get(command, "")
    harmless = print_with(HARMLESS, call(command, HARMLESS), tmp_path / "harmless", typed)

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(texts.acting_texts)
    def check(text: str) -> None:
        shown = print_with(text, call(command, text), tmp_path / "home", typed)
        check_screen(shown, harmless, command)

    check()


@pytest.mark.parametrize("command", ["solve", "models eval"])
@pytest.mark.parametrize("text", [HOSTILE[0], HOSTILE[6], "[/red]"])
def test_unknown_arguments_are_text(command: str, text: str, tmp_path: Path) -> None:
    shown = print_with(text, [*command.split(), f"--{text}"], tmp_path)
    assert not find_acting(strip_sequences(shown))
    assert "No such option" in shown


@pytest.mark.parametrize("text", HOSTILE)
def test_tables_and_json_in_a_pipe(cli: Cli, monkeypatch: Patch, text: str) -> None:
    with_daemon(monkeypatch, HostileDaemon(text))
    for arguments in (["runs", "ls"], ["ps"], ["runs", "show", "run-1", "--tree"]):
        done = cli(*arguments)
        assert not find_acting(done.out + done.err)
    done = cli("runs", "ls", "--json")
    assert not find_acting(done.out)
    assert json.loads(done.out)[0]["problem"] == json.loads(json.dumps(f"What is 12 + 7?{text}"))


@pytest.mark.parametrize(
    ("text", "shown"), [("\x1b[1m\u202e", "\x1b[1m\u202e"), (" \ud83d", " �")], ids=ascii
)
def test_an_answer_in_a_pipe(cli: Cli, monkeypatch: Patch, text: str, shown: str) -> None:
    with_daemon(monkeypatch, HostileDaemon(text))
    done = cli("solve", "12 + 7")
    assert done.out == f"19{shown}\n"
    assert not find_acting(done.err)


def test_a_conversation_goes_on_after_half_a_surrogate(cli: Cli, monkeypatch: Patch) -> None:
    daemon = with_daemon(monkeypatch, HostileDaemon(""))
    body = 'data: {"choices": [{"delta": {"content": "ok \\ud83d"}}]}\n\n'
    body += 'data: {"choices": [{"delta": {"content": "\\ude00 \\ud83d"}}]}\n\ndata: [DONE]\n\n'
    monkeypatch.setattr(daemon, "handler", lambda _: httpx.Response(200, content=body.encode()))
    monkeypatch.setattr(sys, "stdin", Terminal("one\ntwo\n"))
    done = cli.ends(0, "", "chat", "--search", "off")
    assert done.out.count("ok 😀 �\n") == 2


@pytest.mark.parametrize("text", HOSTILE)
def test_messages_and_bars(monkeypatch: Patch, text: str) -> None:
    from flashedge.cli.progress import show_bar

    def show(text: str) -> str:
        screen = screens.open_screen(monkeypatch)
        output.note(text)
        output.warn(text)
        output.print_error(RequestError(text, hint=text))
        output.show_thinking(text)
        output.print_table((text, "b"), [(text, None)], text)
        output.print_table(("a",), [], text)
        with connection.show_start() as report:
            report(text)
        with show_bar(text, 2, unit=text) as advance:
            advance(1)
        try:
            raise ValueError(text)
        except ValueError as error:
            output.print_traceback(type(error), error, error.__traceback__)
        return screen.printed

    check_screen(show(text), show(HARMLESS))


def test_an_error_of_our_own_is_reported_as_text(monkeypatch: Patch) -> None:
    screen = screens.open_screen(monkeypatch)
    monkeypatch.setattr(main, "app", lambda *_, **__: (_ for _ in ()).throw(ValueError("\x1b[2J")))
    with pytest.raises(ValueError, match="2J") as caught:
        main.run()
    sys.excepthook(caught.type, caught.value, caught.tb)
    assert "ValueError: ␛[2J" in screen.printed
