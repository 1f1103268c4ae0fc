"""How a command reaches the daemon, starting one if none runs."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.text import Text

from flashedge.cli import output
from flashedge.config import Config, load_config, trace_settings
from flashedge.literal import show_in_line

NOTE_EVERY_S = 15.0
"""Least time between two notes on a daemon that starts, where no terminal shows a spinner. Chosen
by hand: a start of minutes gets a handful of lines in a log, and the user sees that it goes on."""


def connect_ready(config: Config, *, program: str | None = None) -> Any:
    """A client of a ready daemon, which is started if none runs.

    program: what the client's requests belong to. Raises what `daemon.control.ensure` raises.
    """
    from flashedge.cli.profile import renew_profile
    from flashedge.daemon import control as daemon_control
    from flashedge.daemon.files import find_holder

    if daemon_control.find_daemon(config) is None:
        if find_holder(config) is None:
            renew_profile(config)  # the starting daemon reads it
        with show_start() as show:
            daemon_control.ensure(config, on_state=show)
    else:
        daemon_control.ensure(config)
    return daemon_control.connect(config, program=program)


def load_served(pair: str | None) -> Config:
    """The configuration with `pair` or that of the environment, or else with the pair of a daemon
    that runs."""
    from flashedge.daemon.control import find_daemon

    config = load_config({"pair": pair})
    is_asked = trace_settings({"pair": pair})["pair"].source in ("the command", "the environment")
    if not is_asked and (record := find_daemon(config)) is not None:
        config = load_config({"pair": record.pair})
    return config


@contextlib.contextmanager
def show_start() -> Iterator[Callable[[str], None]]:
    """Show on stderr that the daemon starts. Yields a function to call with the daemon's state."""
    console = output.stderr()
    began = noted_at = time.monotonic()
    noted = ""

    def note(state: str) -> None:
        nonlocal noted_at, noted
        if state != noted and time.monotonic() - noted_at >= NOTE_EVERY_S:
            noted_at, noted = time.monotonic(), state
            output.note(f"starting the daemon: {state}")

    def spin(state: str) -> None:
        waited_s = time.monotonic() - began
        spinner.update(Text(f"starting the daemon: {show_in_line(state)} ({waited_s:.0f} s)"))

    if not console.is_terminal:
        output.note("starting the daemon")
        yield note
        return
    with console.status("starting the daemon") as spinner:
        yield spin
