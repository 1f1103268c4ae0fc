"""What the options of all commands have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from flashedge.cli.main import app


def list_options(command: Any, name: str = "flashedge") -> Iterator[tuple[str, list[str]]]:
    """(command, spellings) of each option of `command` and of the commands below it."""
    for below in getattr(command, "commands", {}):
        yield from list_options(command.get_command(None, below), f"{name} {below}")
    for parameter in command.params:
        if parameter.param_type_name == "option":
            yield name, parameter.opts


def test_every_short_option_has_a_long_one() -> None:
    options = list(list_options(typer.main.get_command(app)))
    short = [(command, opts) for command, opts in options if any(len(o) == 2 for o in opts)]
    assert len(short) > 8
    assert not [found for found in short if not any(o.startswith("--") for o in found[1])]


def test_the_number_of_paths_is_n_in_both_spellings() -> None:
    options = list_options(typer.main.get_command(app))
    paths = {command: opts for command, opts in options if "--n" in opts or opts == ["-n"]}
    names = ("solve", "calibrate", "simulate", "models eval", "bench flashtts", "bench load")
    assert paths == {f"flashedge {name}": ["--n", "-n"] for name in names}
