"""What all commands share: how they print, and the names of their options."""

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import typer
from rich.console import Console

from flashedge.cli import output
from flashedge.cli.main import app
from flashedge.errors import RequestError
from tests.support.cli_rig import Patch

LONG = " ".join(["no strategy 'foo'; known: beam,"] + [f"another_strategy_{i}" for i in range(8)])
WIDTH = 40


def print_long_error(text: str) -> None:
    output.print_error(RequestError(text, hint=f"use {text}"))


@pytest.mark.parametrize("say", [output.note, output.warn, print_long_error])
@pytest.mark.parametrize("is_terminal", [True, False])
def test_long_messages(monkeypatch: Patch, say: Callable[[str], None], is_terminal: bool) -> None:
    file = io.StringIO()
    console = Console(file=file, width=WIDTH, force_terminal=is_terminal, color_system=None)
    monkeypatch.setattr(output, "stderr", lambda: console)
    say(LONG)
    printed = file.getvalue()
    assert " ".join(LONG.split()) in " ".join(printed.split()), "no word is broken"
    longest = max(map(len, printed.splitlines()))
    assert longest <= WIDTH if is_terminal else longest >= len(LONG)


def list_options(command: Any, name: str = "flashedge") -> Iterator[tuple[str, list[str]]]:
    for below in getattr(command, "commands", {}):
        yield from list_options(command.get_command(None, below), f"{name} {below}")
    for parameter in command.params:
        if parameter.param_type_name == "option":
            yield name, parameter.opts


def test_every_short_option_has_a_long_one_and_that_of_n_is_n() -> None:
    options = list(list_options(typer.main.get_command(app)))
    short = [(command, opts) for command, opts in options if any(len(o) == 2 for o in opts)]
    assert len(short) > 8
    assert not [found for found in short if not any(o.startswith("--") for o in found[1])]
    paths = {command: opts for command, opts in options if "--n" in opts or opts == ["-n"]}
    names = ("solve", "calibrate", "simulate", "models eval", "bench flashtts", "bench load")
    assert paths == {f"flashedge {name}": ["--n", "-n"] for name in names}
