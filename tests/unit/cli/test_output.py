"""Messages on stderr: where their lines break."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from flashedge.cli import output
from flashedge.errors import RequestError

LONG = " ".join(["no strategy 'foo'; known: beam,"] + [f"another_strategy_{i}" for i in range(8)])
WIDTH = 40


def print_long_error() -> None:
    output.print_error(RequestError(LONG, hint=f"use {LONG}"))


@pytest.mark.parametrize(
    "say", [lambda: output.note(LONG), lambda: output.warn(LONG), print_long_error]
)
@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_breaks_lines_at_blanks_and_a_pipe_does_not(
    monkeypatch: pytest.MonkeyPatch, say: Callable[[], None], is_terminal: bool
) -> None:
    file = io.StringIO()
    console = Console(file=file, width=WIDTH, force_terminal=is_terminal, color_system=None)
    monkeypatch.setattr(output, "stderr", lambda: console)
    say()
    printed = file.getvalue()
    assert " ".join(LONG.split()) in " ".join(printed.split()), "no word is broken"
    longest = max(map(len, printed.splitlines()))
    assert longest <= WIDTH if is_terminal else longest >= len(LONG)


def test_a_message_is_not_markup(capfd: pytest.CaptureFixture[str]) -> None:
    output.print_error(RequestError("[red] :smile:", hint="[/nope]"))
    assert capfd.readouterr().err == "error: [red] :smile:\n  [/nope]\n"
